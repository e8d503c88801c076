//! Configurations of the servers. The servers run in the foreground, write only errors, and keep connections for as long as the clients
//! want.

use std::path::Path;

use super::software::{DEBIAN_PYTHON, ServerSoftware};

/// Maximum number of open descriptors of a server. Below the hard limit of small machines.
const FILES_MAX: u32 = 16_384;
/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 4096;
/// Number of threads of an Apache process.
const APACHE_THREADS: u32 = 64;

/// Port of the internal server that stores POSTed content. nginx itself can store only by PUT.
const STORE_PORT: u16 = 8081;

/// nginx's configuration. A request with `?rate=N` gets its reply in small pieces, at N bytes per second. PUT and POST store their content
/// in `files`, which both nodes share. Each worker has its own listener, so that connections are spread evenly.
pub fn nginx(own: &Path, files: &Path, workers: u32) -> String {
    let (own, files) = (own.display(), files.display());
    let port = ServerSoftware::Nginx.port();
    let shared = if workers > 1 { " reuseport" } else { "" };
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {own}/{kind};\n"))
        .concat();
    format!(
        "daemon off;
user root;
worker_processes {workers};
worker_rlimit_nofile {FILES_MAX};
pid {own}/nginx.pid;
error_log stderr warn;
events {{
    worker_connections {FILES_MAX};
}}
http {{
    access_log off;
    client_max_body_size 0;
    sendfile on;
    sendfile_max_chunk 256k;
    tcp_nopush on;
    default_type application/octet-stream;
    keepalive_timeout 1h;
    keepalive_requests 1000000000;
{temporary}    # The workers store each other's uploads. If one dies, another stores the upload again.
    upstream store {{
        server 127.0.0.1:{STORE_PORT};
        server 127.0.0.1:{STORE_PORT};
    }}
    server {{
        listen 0.0.0.0:{port} backlog={BACKLOG}{shared};
        listen [::]:{port} ipv6only=on backlog={BACKLOG}{shared};
        root {files};
        if ($arg_rate) {{
            rewrite ^/(.*)$ /paced/$1 last;
        }}
        location /paced/ {{
            internal;
            alias {files}/;
            limit_rate $arg_rate;
            sendfile_max_chunk 16k;
        }}
        location /uploads/ {{
            dav_methods PUT;
        }}
        location /post/ {{
            proxy_method PUT;
            proxy_http_version 1.1;
            proxy_pass http://store/uploads/;
            proxy_next_upstream error timeout non_idempotent;
        }}
    }}
    server {{
        listen 127.0.0.1:{STORE_PORT};
        root {files};
        location /uploads/ {{
            dav_methods PUT;
        }}
    }}
}}
"
    )
}

/// Apache's configuration. Apache always has `workers` processes.
pub fn apache(own: &Path, files: &Path, workers: u32) -> String {
    let (own, files) = (own.display(), files.display());
    let port = ServerSoftware::Apache.port();
    let threads = workers * APACHE_THREADS;
    format!(
        "ServerRoot {own}
PidFile {own}/apache.pid
ServerName lab
Listen 0.0.0.0:{port}
Listen [::]:{port}
ListenBacklog {BACKLOG}
LoadModule mpm_event_module /usr/lib/apache2/modules/mod_mpm_event.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
StartServers {workers}
ServerLimit {workers}
ThreadsPerChild {APACHE_THREADS}
ThreadLimit {APACHE_THREADS}
MaxRequestWorkers {threads}
MinSpareThreads {threads}
MaxSpareThreads {threads}
AsyncRequestWorkerFactor 100
MaxConnectionsPerChild 0
KeepAlive On
KeepAliveTimeout 3600
MaxKeepAliveRequests 0
Timeout 3600
EnableSendfile On
ErrorLog /dev/stderr
LogLevel warn
DocumentRoot {files}
<Directory {files}>
    Require all granted
</Directory>
"
    )
}

/// lighttpd's configuration. lighttpd has one process, which is its default.
pub fn lighttpd(own: &Path, files: &Path) -> String {
    let (common, files) = (lighttpd_common(own), files.display());
    let port = ServerSoftware::Lighttpd.port();
    format!(
        "server.document-root = \"{files}\"
server.port = {port}
server.bind = \"0.0.0.0\"
$SERVER[\"socket\"] == \"[::]:{port}\" {{ server.set-v6only = \"enable\" }}
{common}server.max-read-idle = 3600
server.max-write-idle = 3600
mimetype.assign = ( \"\" => \"application/octet-stream\" )
"
    )
}

/// The user of [`lighttpd_digest`], with the password `word`: name, realm, and MD5 of name, realm and password.
pub const PASSWORDS: &str = "lab:files:b17a391464aab2ebfc3289be6e1c3015\n";

/// Debian's configuration of lighttpd, except for the places of files. The server asks for a password (HTTP digest). It sends files by
/// `sendfile`, which is its default, and keeps Debian's user, who must be able to read `files`.
pub fn lighttpd_digest(own: &Path, files: &Path) -> String {
    let (own, files) = (own.display(), files.display());
    let port = ServerSoftware::DigestLighttpd.port();
    format!(
        "include \"/etc/lighttpd/lighttpd.conf\"
server.document-root := \"{files}\"
server.errorlog := \"\"
server.pid-file := \"{own}/lighttpd.pid\"
server.upload-dirs := ( \"{own}\" )
server.port := {port}
server.modules += ( \"mod_auth\", \"mod_authn_file\" )
auth.backend = \"htdigest\"
auth.backend.htdigest.userfile = \"{own}/passwords\"
auth.require = ( \"\" => ( \"method\" => \"digest\", \"realm\" => \"files\", \"require\" => \"valid-user\" ) )
"
    )
}

/// inetd's configuration: the program `tick.py` in `own`, at all addresses of both families.
pub fn inetd(own: &Path) -> String {
    let (own, port) = (own.display(), ServerSoftware::Inetd.port());
    format!("{port} stream tcp nowait root {DEBIAN_PYTHON} python3 -I {own}/tick.py\n")
}

/// The directories of [`samba`] below the server's own directory.
pub const SAMBA_DIRECTORIES: [&str; 6] = ["private", "lock", "state", "cache", "pid", "ncalrpc"];

/// Samba's configuration: guests read `files` as the share `files`. Without asynchronous input and output, smbd has one thread.
pub fn samba(own: &Path, files: &Path) -> String {
    let [private, lock, state, cache, pid, ncalrpc] = SAMBA_DIRECTORIES.map(|kind| own.join(kind));
    let (files, port) = (files.display(), ServerSoftware::Samba.port());
    format!(
        "[global]
server role = standalone server
netbios name = lab
map to guest = Bad User
guest account = root
smb ports = {port}
disable netbios = yes
server signing = disabled
aio read size = 0
aio write size = 0
private dir = {}
lock directory = {}
state directory = {}
cache directory = {}
pid directory = {}
ncalrpc dir = {}
load printers = no
printing = bsd
disable spoolss = yes
kernel share modes = no
posix locking = no
[files]
path = {files}
guest ok = yes
",
        private.display(),
        lock.display(),
        state.display(),
        cache.display(),
        pid.display(),
        ncalrpc.display()
    )
}

/// vsftpd's configuration: anonymous users read `files`. The sandbox for system calls does not allow those of the library, and isolated
/// children are made by bare system calls.
pub fn vsftpd(own: &Path, files: &Path) -> String {
    let (own, files) = (own.display(), files.display());
    let port = ServerSoftware::Vsftpd.port();
    format!(
        "listen_ipv6=YES
listen_port={port}
background=NO
anonymous_enable=YES
local_enable=NO
no_anon_password=YES
anon_root={files}
nopriv_user=nobody
secure_chroot_dir={own}/empty
seccomp_sandbox=NO
isolate=NO
isolate_network=NO
idle_session_timeout=3600
"
    )
}

/// The part that all configurations of lighttpd share. `own` is the server's directory.
fn lighttpd_common(own: &Path) -> String {
    let own = own.display();
    format!(
        "server.pid-file = \"{own}/lighttpd.pid\"
server.upload-dirs = ( \"{own}\" )
server.max-fds = {FILES_MAX}
server.listen-backlog = {BACKLOG}
server.max-keep-alive-requests = 65535
server.max-keep-alive-idle = 3600
"
    )
}

/// lighttpd's configuration with the CGI script `random.cgi` in `own`, at a local port or, if `is_open`, at all IPv4 addresses.
pub fn cgi(own: &Path, port: u16, is_open: bool) -> String {
    let (common, own) = (lighttpd_common(own), own.display());
    let address = if is_open { "0.0.0.0" } else { "127.0.0.1" };
    format!(
        "server.modules = ( \"mod_cgi\" )
server.document-root = \"{own}\"
server.port = {port}
server.bind = \"{address}\"
$SERVER[\"socket\"] == \"[::1]:{port}\" {{ server.set-v6only = \"enable\" }}
{common}server.stream-response-body = 1
cgi.assign = ( \".cgi\" => \"\" )
"
    )
}

/// The stage's configuration before a local application at `port`. `ipv6`: the service's family. Without a socket for snapshots, the stage
/// exports nothing.
pub fn stage(listen: u16, port: u16, ipv6: bool, snapshots: &Path) -> String {
    let (any, loopback) = if ipv6 {
        ("[::]", "[::1]")
    } else {
        ("0.0.0.0", "127.0.0.1")
    };
    format!(
        "stage = [\"{any}:{listen}\"]
application = \"{loopback}:{port}\"
client_address = {}
snapshot_socket = \"{}\"
idle_s = 3600
",
        !snapshots.as_os_str().is_empty(),
        snapshots.display()
    )
}

/// Arguments of Python's http.server. The server speaks HTTP/1.1, so that connections are kept, and listens at all addresses of both
/// families.
pub fn python(files: &Path) -> Vec<String> {
    let port = ServerSoftware::Python.port().to_string();
    [
        "-u",
        "-m",
        "http.server",
        &port,
        "--bind",
        "::",
        "--protocol",
        "HTTP/1.1",
        "--directory",
    ]
    .map(str::to_owned)
    .into_iter()
    .chain([files.display().to_string()])
    .collect()
}

/// Arguments of redis. In memory only, reachable from everywhere.
pub fn redis(own: &Path) -> Vec<String> {
    let options = [
        ("--port", ServerSoftware::Redis.port().to_string()),
        ("--bind", "* -::*".to_owned()),
        ("--protected-mode", "no".to_owned()),
        ("--save", String::new()),
        ("--appendonly", "no".to_owned()),
        ("--dir", own.display().to_string()),
        // For the administrator: recorded order does not order it. The path is relative to `--dir`.
        ("--unixsocket", "redis.sock".to_owned()),
        ("--enable-debug-command", "yes".to_owned()),
        // Copies the state to a returning server without delay.
        ("--repl-diskless-sync-delay", "0".to_owned()),
        ("--tcp-backlog", BACKLOG.to_string()),
        ("--maxclients", (FILES_MAX - 64).to_string()),
    ];
    options
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nginx_is_told_to_stay_in_its_directory() {
        let text = nginx(Path::new("/x/a"), Path::new("/x/files"), 2);
        assert_eq!(text.matches('{').count(), text.matches('}').count());
        assert!(text.contains("root /x/files;"));
        assert!(text.contains("fastcgi_temp_path /x/a/fastcgi;"));
        assert_eq!(text.matches(" reuseport;").count(), 2);
    }
}
