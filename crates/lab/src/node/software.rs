//! The servers that the lab runs. None of them is modified. Only the file server knows Steadfast: it shows how to use policy `snapshot`.

use clap::ValueEnum;
use serde::Serialize;

use super::health::HealthProbe;
use crate::client::Protocol;
use crate::run::Needed;

/// Debian's Python. It finds the modules that Debian's packages install. Another Python in PATH may not find them.
pub const DEBIAN_PYTHON: &str = "/usr/bin/python3";
/// A file of PostgreSQL's driver for Python, and the package that contains it.
pub const PSYCOPG: Needed = (
    "/usr/lib/python3/dist-packages/psycopg2/__init__.py",
    "python3-psycopg2",
);
/// A file of the package `python3-websockets`.
pub const WEBSOCKETS: &str = "/usr/lib/python3/dist-packages/websockets/__init__.py";

/// A server that the lab can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerSoftware {
    /// nginx: serves files of pattern data. Event-driven, several workers.
    #[default]
    Nginx,
    /// Apache httpd: serves the same files. Processes and threads (the event module).
    Apache,
    /// lighttpd: serves the same files. Event-driven, one process.
    Lighttpd,
    /// lighttpd with Debian's configuration, which asks for a password (HTTP digest). Each of its challenges has a random number.
    #[value(name = "lighttpd-digest")]
    #[serde(rename = "lighttpd-digest")]
    DigestLighttpd,
    /// Python's http.server: serves the same files. One process, with a thread for each connection.
    Python,
    /// redis: stores the values that clients write; one process.
    Redis,
    /// The file server of `bindings/python`: serves the same files and exports its state. One process, with a thread for each connection.
    #[value(name = "file-server")]
    #[serde(rename = "file-server")]
    FileServer,
    /// lighttpd with a CGI script whose replies are random, behind `steadfast stage`.
    Cgi,
    /// lighttpd with the same script, without a stage, for `bench coral`.
    #[value(skip)]
    PlainCgi,
    /// The PostgreSQL front-end of `bindings/python`, for `pg-exactly-once`. The lab's own clients do not speak to it.
    #[value(skip)]
    #[serde(rename = "pg-front-end")]
    PgFrontEnd,
    /// The same front-end, which commits in the wrong order.
    #[value(skip)]
    #[serde(rename = "pg-front-end-wrong")]
    WrongPgFrontEnd,
    /// Python's websockets: echoes each message. The lab's own clients do not speak WebSocket.
    #[value(skip)]
    Websockets,
    /// The lab's streaming server: sends lines with the time and random numbers, whenever its clock tells it to. One process.
    #[value(name = "stream")]
    #[serde(rename = "stream")]
    Stream,
    /// The same, but on node b it asks for random bytes that it does not need. So it diverges from a record.
    #[value(name = "diverging-stream")]
    #[serde(rename = "diverging-stream")]
    DivergingStream,
    /// The same, but node b's random numbers differ. So the client's data differ.
    #[value(skip)]
    #[serde(rename = "visibly-diverging-stream")]
    VisiblyDivergingStream,
    /// openbsd-inetd, which starts a program for each connection: it sends the same lines. The program's standard input and output are the
    /// connection.
    Inetd,
    /// Samba's smbd without asynchronous input and output, for guests. It forks for each connection.
    Samba,
    /// vsftpd for anonymous users. It forks for each connection, and each child has children.
    Vsftpd,
}

impl ServerSoftware {
    /// The server's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Apache => "apache2",
            Self::Lighttpd => "lighttpd",
            Self::DigestLighttpd => "lighttpd-digest",
            Self::Python => "python3",
            Self::Redis => "redis-server",
            Self::FileServer => "file-server",
            Self::Cgi => "cgi",
            Self::PlainCgi => "plain-cgi",
            Self::PgFrontEnd | Self::WrongPgFrontEnd => "pg-front-end",
            Self::Websockets => "websockets",
            Self::Stream => "stream",
            Self::Inetd => "inetd",
            Self::Samba => "samba",
            Self::Vsftpd => "vsftpd",
            Self::DivergingStream => "diverging-stream",
            Self::VisiblyDivergingStream => "visibly-diverging-stream",
        }
    }

    /// The server's program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nginx
            | Self::Apache
            | Self::Lighttpd
            | Self::Python
            | Self::Redis
            | Self::Inetd
            | Self::Vsftpd => self.name(),
            Self::Samba => "smbd",
            Self::DigestLighttpd | Self::Cgi | Self::PlainCgi => Self::Lighttpd.program(),
            Self::FileServer
            | Self::PgFrontEnd
            | Self::WrongPgFrontEnd
            | Self::Websockets
            | Self::Stream
            | Self::DivergingStream
            | Self::VisiblyDivergingStream => DEBIAN_PYTHON,
        }
    }

    /// The program in PATH or the file that the server needs, and the Debian package that contains this program or file.
    pub fn needs(self) -> (&'static str, &'static str) {
        let package = match self {
            Self::Nginx => "nginx-light",
            Self::Apache => "apache2-bin",
            Self::Lighttpd
            | Self::DigestLighttpd
            | Self::Python
            | Self::Redis
            | Self::Cgi
            | Self::PlainCgi
            | Self::Vsftpd => self.program(),
            Self::Inetd => "openbsd-inetd",
            Self::Samba => self.name(),
            Self::FileServer | Self::Stream | Self::DivergingStream | Self::VisiblyDivergingStream => {
                return (DEBIAN_PYTHON, "python3");
            }
            Self::PgFrontEnd | Self::WrongPgFrontEnd => return PSYCOPG,
            Self::Websockets => return (WEBSOCKETS, "python3-websockets"),
        };
        (self.program(), package)
    }

    /// The port on which the server listens.
    pub fn port(self) -> u16 {
        match self.protocol() {
            Protocol::Http => 80,
            Protocol::Redis => 6379,
        }
    }

    /// The protocol of the server's clients.
    pub fn protocol(self) -> Protocol {
        match self {
            Self::Nginx
            | Self::Apache
            | Self::Lighttpd
            | Self::DigestLighttpd
            | Self::Python
            | Self::FileServer
            | Self::Cgi
            | Self::PlainCgi
            | Self::PgFrontEnd
            | Self::WrongPgFrontEnd
            | Self::Websockets
            | Self::Stream
            | Self::Inetd
            | Self::Samba
            | Self::Vsftpd
            | Self::DivergingStream
            | Self::VisiblyDivergingStream => Protocol::Http,
            Self::Redis => Protocol::Redis,
        }
    }

    /// Whether the server diverges from its record on node b.
    pub fn diverges(self) -> bool {
        matches!(self, Self::DivergingStream | Self::VisiblyDivergingStream)
    }

    /// Whether the server uses policy `snapshot`.
    pub fn exports_state(self) -> bool {
        matches!(
            self,
            Self::FileServer | Self::Cgi | Self::PgFrontEnd | Self::WrongPgFrontEnd
        )
    }

    /// The local port of the application, if the server is a stage.
    pub fn staged_port(self) -> Option<u16> {
        (self == Self::Cgi).then_some(8080)
    }

    /// Whether the server's clients upgrade their connections from HTTP to another protocol.
    pub fn is_opaque(self) -> bool {
        self == Self::Websockets
    }

    /// The health probe for this server. A working server gives the expected answer.
    pub fn health(self) -> HealthProbe {
        match self.protocol() {
            Protocol::Http if self == Self::Vsftpd => HealthProbe {
                send: "",
                expect: "220 ",
            },
            // An answer of SMB is no text, so only the connection counts.
            Protocol::Http if self == Self::Samba => HealthProbe { send: "", expect: "" },
            Protocol::Http => HealthProbe {
                send: "GET / HTTP/1.0\r\n\r\n",
                expect: "HTTP/1.",
            },
            Protocol::Redis => HealthProbe {
                send: "PING\r\n",
                expect: "+PONG",
            },
        }
    }

    /// Whether the server spreads its connections over several worker processes.
    pub fn has_workers(self) -> bool {
        matches!(self, Self::Nginx | Self::Apache)
    }
}
