/* A peer that uses another SCTP stack: usrsctp. It sends or receives a pattern over UDP. Steadfast's stack is compared with it.
 *
 * usrsctp_peer listen|connect  source|sink  BYTES MESSAGE UDP_LOCAL UDP_REMOTE PORT PMR [ADDRESS ...]
 *
 * Byte N of the pattern is (N * 7 + N / 251) & 255. At the end the program prints: bytes, reads that differ, milliseconds, CPU
 * milliseconds, longest gap between reads in milliseconds, peak memory in kilobytes. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <usrsctp.h>

/* PERIOD: bytes after which the pattern repeats. `table` has the pattern's first bytes. So a read at any place of the pattern is compared
 * with one memcmp, and a message is sent from the table. */
#define PERIOD (251 * 256)
#define READ_MAX (1 << 20)
static unsigned char table[PERIOD + READ_MAX];

/* Gives usrsctp's sockets buffers of the same size as Steadfast's. usrsctp calls this function instead of the C library's, and asks for
 * smaller buffers. A window of 4 MiB would overflow the smaller buffers, and a measurement would show the recovery from these losses. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t length) {
    int buffer = 16 << 20, is_buffer = level == SOL_SOCKET && (name == SO_RCVBUF || name == SO_SNDBUF);
    if (is_buffer && !syscall(SYS_setsockopt, fd, level, name == SO_RCVBUF ? SO_RCVBUFFORCE : SO_SNDBUFFORCE, &buffer, sizeof buffer)) return 0;
    return syscall(SYS_setsockopt, fd, level, name, value, length);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static long memory(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return r.ru_maxrss;
}

static double cpu(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e3 + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e3;
}

static void die(const char *step) {
    perror(step);
    exit(1);
}

static struct socket *open_socket(int family, int udp_remote, int pmr) {
    struct socket *s = usrsctp_socket(family, SOCK_STREAM, IPPROTO_SCTP, NULL, NULL, 0, NULL);
    if (!s) die("usrsctp_socket");
    struct sctp_udpencaps encaps = {0};
    encaps.sue_address.ss_family = family;
    encaps.sue_port = htons(udp_remote);
    if (usrsctp_setsockopt(s, IPPROTO_SCTP, SCTP_REMOTE_UDP_ENCAPS_PORT, &encaps, sizeof encaps)) die("encaps");
    int on = 1, buffer = 4 << 20;
    if (family == AF_INET6) usrsctp_setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    usrsctp_setsockopt(s, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
    usrsctp_setsockopt(s, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    usrsctp_setsockopt(s, IPPROTO_SCTP, SCTP_NODELAY, &on, sizeof on);
    struct sctp_rtoinfo rto = {0};
    rto.srto_initial = 500, rto.srto_min = 200, rto.srto_max = 2000;
    if (usrsctp_setsockopt(s, IPPROTO_SCTP, SCTP_RTOINFO, &rto, sizeof rto)) die("rto");
    struct sctp_paddrparams path = {0};
    path.spp_address.ss_family = family;
    path.spp_pathmaxrxt = pmr > 0 ? pmr : 1;
    path.spp_hbinterval = 500;
    path.spp_flags = SPP_HB_ENABLE;
    if (usrsctp_setsockopt(s, IPPROTO_SCTP, SCTP_PEER_ADDR_PARAMS, &path, sizeof path)) die("paddrparams");
    return s;
}

int main(int count, char **word) {
    if (count < 9) return 2;
    int listens = !strcmp(word[1], "listen"), sends = !strcmp(word[2], "source");
    uint64_t bytes = strtoull(word[3], NULL, 10), done = 0, wrong = 0;
    size_t size = strtoul(word[4], NULL, 10);
    int udp_local = atoi(word[5]), udp_remote = atoi(word[6]), port = atoi(word[7]), pmr = atoi(word[8]);
    for (uint64_t n = 0; n < sizeof table; n++) table[n] = (n * 7 + n / 251) & 255;
    int family = count > 9 && strchr(word[9], ':') ? AF_INET6 : AF_INET;
    usrsctp_init(udp_local, NULL, NULL);
    usrsctp_sysctl_set_sctp_blackhole(2);
    usrsctp_sysctl_set_sctp_ecn_enable(0);
    usrsctp_sysctl_set_sctp_no_csum_on_loopback(0);
    struct socket *s = open_socket(family, udp_remote, pmr);
    char packed[8 * sizeof(struct sockaddr_in6)], *end = packed;
    for (int i = 9; i < count && i < 17; i++) {
        if (family == AF_INET) {
            struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
            if (inet_pton(AF_INET, word[i], &a.sin_addr) != 1) return 2;
            memcpy(end, &a, sizeof a), end += sizeof a;
        } else {
            struct sockaddr_in6 a = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
            if (inet_pton(AF_INET6, word[i], &a.sin6_addr) != 1) return 2;
            memcpy(end, &a, sizeof a), end += sizeof a;
        }
    }
    if (listens) {
        /* A listening end binds to the given addresses. */
        if (usrsctp_bindx(s, (struct sockaddr *)packed, count - 9, SCTP_BINDX_ADD_ADDR)) die("bindx");
        if (usrsctp_listen(s, 1)) die("listen");
        printf("ready\n"), fflush(stdout);
        struct socket *one = usrsctp_accept(s, NULL, NULL);
        if (!one) die("accept");
        s = one;
    } else {
        sctp_assoc_t id = 0;
        if (usrsctp_connectx(s, (struct sockaddr *)packed, count - 9, &id)) die("connectx");
    }
    double begun = now(), last = begun, gap = 0;
    unsigned char *buffer = malloc(READ_MAX);
    while (done < bytes) {
        if (sends) {
            size_t part = bytes - done < size ? bytes - done : size;
            struct sctp_sndinfo info = {0};
            info.snd_sid = 1;
            ssize_t sent = usrsctp_sendv(s, table + done % PERIOD, part, NULL, 0, &info, sizeof info, SCTP_SENDV_SNDINFO, 0);
            if (sent < 0) die("sendv");
            done += sent;
        } else {
            int flags = 0;
            struct sctp_rcvinfo info;
            socklen_t length = sizeof info;
            unsigned kind = 0;
            struct sockaddr_storage from;
            socklen_t of_from = sizeof from;
            ssize_t got = usrsctp_recvv(s, buffer, READ_MAX, (struct sockaddr *)&from, &of_from, &info, &length, &kind, &flags);
            if (got < 0) die("recvv");
            if (got == 0) break;
            wrong += memcmp(buffer, table + done % PERIOD, got) != 0;
            done += got;
            double at = now();
            if (at - last > gap) gap = at - last;
            last = at;
        }
    }
    double ended = now();
    if (sends) {
        /* Wait until the association has ended: then the receiver has everything. */
        usrsctp_shutdown(s, SHUT_WR);
        while (usrsctp_recvv(s, buffer, READ_MAX, NULL, &(socklen_t){0}, NULL, &(socklen_t){0}, &(unsigned){0}, &(int){0}) > 0) {}
        ended = now();
    }
    printf("%llu %llu %.0f %.0f %.0f %ld\n", (unsigned long long)done, (unsigned long long)wrong, ended - begun, cpu(), gap, memory());
    fflush(stdout);
    usrsctp_close(s);
    for (int i = 0; i < 200 && usrsctp_finish(); i++) usleep(10000);
    return done == bytes && !wrong ? 0 : 1;
}
