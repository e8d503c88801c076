/*
 * file_server DIRECTORY ADDRESS:PORT...: serves the files below a directory over HTTP/1.1, with GET and HEAD.
 *
 * This is the server of Figure 4 in Sultan et al., "Migratory TCP". It exports its state after each block of a file, and after each
 * request. If the server or its node fails during a download, the server on the other node goes on from the last block.
 *
 * From a snapshot on, the answers depend only on the input and on the files, which both nodes must have. So an answer has no Date, and no
 * connection is closed because it is idle.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

#include "server.h"

enum { BLOCK = 256 * 1024, AHEAD_MAX = 8192 };

/* The state of a connection. All but the used part of `ahead` is exported. */
struct snapshot {
	/* The file that is being sent, below the directory. Empty between two requests. */
	char file[1024];
	/* The bytes of the file from `offset` to `end` are still to be sent. */
	uint64_t offset, end;
	/* Whether the connection ends after the current answer. */
	uint32_t closes;
	/* Input that was read, but not used yet: the beginning of the next requests. */
	uint32_t ahead_size;
	char ahead[AHEAD_MAX];
};

enum method { GET, HEAD, OTHER };

struct request {
	enum method method;
	const char *target;
	int closes;
};

static int directory;

static int export_snapshot(int connection, const struct snapshot *now)
{
	return export_state(connection, now, offsetof(struct snapshot, ahead) + now->ahead_size);
}

/* Opens a regular file below the directory. Returns -1 if there is none of this name. */
static int open_file(const char *name, uint64_t *size)
{
	struct stat status;
	/* Without O_NONBLOCK, the opening of a named pipe would wait for its writer. */
	int file = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (file >= 0 && (fstat(file, &status) || !S_ISREG(status.st_mode))) {
		close(file);
		return -1;
	}
	if (file >= 0)
		*size = (uint64_t)status.st_size;
	return file;
}

/* Sends the rest of the file, with a snapshot after each block. Returns whether this server goes on with the connection. */
static int send_file(int connection, int file, struct snapshot *now)
{
	while (now->offset < now->end) {
		uint64_t block_end = now->offset + BLOCK < now->end ? now->offset + BLOCK : now->end;
		off_t at = (off_t)now->offset;
		while ((uint64_t)at < block_end) {
			/* 0: the file has become shorter than its answer's Content-Length. */
			if (sendfile(connection, file, &at, block_end - (uint64_t)at) <= 0)
				return 0;
		}
		now->offset = block_end;
		if (now->offset < now->end && !export_snapshot(connection, now))
			return 0;
	}
	return 1;
}

/* Ends the current answer: the connection is between two requests. */
static int end_answer(int connection, struct snapshot *now)
{
	memset(now->file, 0, sizeof(now->file));
	now->offset = now->end = 0;
	return export_snapshot(connection, now);
}

/* Goes on with an answer that began on the other node. */
static int resume_answer(int connection, struct snapshot *now)
{
	uint64_t size;
	int file = open_file(now->file, &size);
	if (file < 0)
		return 0;
	int goes_on = send_file(connection, file, now) && end_answer(connection, now);
	close(file);
	return goes_on;
}

static int send_head(int connection, const char *status, uint64_t length, int closes, int flags)
{
	char head[256];
	int is_405 = strncmp(status, "405", 3) == 0;
	int size = snprintf(head, sizeof(head), "HTTP/1.1 %s\r\nContent-Length: %llu\r\n%s%s\r\n", status, (unsigned long long)length,
			    is_405 ? "Allow: GET, HEAD\r\n" : "", closes ? "Connection: close\r\n" : "");
	return send_all(connection, head, (size_t)size, flags);
}

static int answer_error(int connection, struct snapshot *now, const char *status, enum method method)
{
	char body[64];
	int size = snprintf(body, sizeof(body), "%s\n", status);
	return send_head(connection, status, (uint64_t)size, now->closes != 0, 0) &&
	       (method == HEAD || send_all(connection, body, (size_t)size, 0)) && end_answer(connection, now);
}

static int answer_file(int connection, struct snapshot *now, enum method method)
{
	int file = open_file(now->file, &now->end);
	if (file < 0)
		return answer_error(connection, now, "404 Not Found", method);
	int has_body = method == GET && now->end > 0;
	int goes_on = send_head(connection, "200 OK", now->end, now->closes != 0, has_body ? MSG_MORE : 0) &&
		      (!has_body || send_file(connection, file, now)) && end_answer(connection, now);
	close(file);
	return goes_on;
}

static int hex_digit(char digit)
{
	if (isdigit((unsigned char)digit))
		return digit - '0';
	return isxdigit((unsigned char)digit) ? tolower((unsigned char)digit) - 'a' + 10 : -1;
}

/* Decodes the path of a request's target into `file`, without its query. Returns 0 for a malformed path. */
static int decode_path(const char *target, char *file, size_t room)
{
	size_t size = 0;
	while (*target == '/')
		target++;
	for (; *target && *target != '?'; target++) {
		int byte = (unsigned char)*target;
		if (byte == '%') {
			int high = hex_digit(target[1]), low = high < 0 ? -1 : hex_digit(target[2]);
			byte = low < 0 ? 0 : high * 16 + low;
			target += 2;
		}
		if (byte == 0 || size + 1 == room)
			return 0;
		file[size++] = (char)byte;
	}
	file[size] = '\0';
	return 1;
}

/* Whether a path stays below the directory: it is relative, and no part of it is "..". */
static int is_below(const char *path)
{
	if (*path == '/')
		return 0;
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += *part == '/';
		if (strncmp(part, "..", 2) == 0 && (part[2] == '\0' || part[2] == '/'))
			return 0;
	}
	return 1;
}

/* Reads a field of the request. Returns 0 if it is malformed, or announces a body: GET and HEAD have none. */
static int parse_field(char *line, struct request *request)
{
	char *value = strchr(line, ':');
	if (!value || value == line || isspace((unsigned char)value[-1]))
		return 0;
	*value++ = '\0';
	value += strspn(value, " \t");
	if (strcasecmp(line, "Connection") == 0 && strcasestr(value, "close"))
		request->closes = 1;
	if (request->method == OTHER)
		return 1;
	if (strcasecmp(line, "Content-Length") == 0)
		return value[strspn(value, "0")] == '\0';
	return strcasecmp(line, "Transfer-Encoding") != 0;
}

/* Parses the head of a request: its lines, each with its CRLF. Returns 0 if it is malformed. */
static int parse_head(char *head, struct request *request)
{
	char *end = strstr(head, "\r\n"), *target = strchr(head, ' ');
	char *version = target ? strchr(target + 1, ' ') : NULL;
	if (!version || version > end || target == head || target[1] != '/')
		return 0;
	*end = *target++ = *version++ = '\0';
	if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
		return 0;
	request->target = target;
	request->method = strcmp(head, "GET") == 0 ? GET : strcmp(head, "HEAD") == 0 ? HEAD : OTHER;
	/* The body of another method is not read, so the connection cannot go on. */
	request->closes = request->method == OTHER || strcmp(version, "HTTP/1.0") == 0;
	for (char *line = end + 2; *line; line = end + 2) {
		end = strstr(line, "\r\n");
		*end = '\0';
		if (!parse_field(line, request))
			return 0;
	}
	return 1;
}

/* Reads until `ahead` begins with a whole head. Returns its size, 0 at the input's end, and -1 if it does not fit. */
static ssize_t read_head(int connection, struct snapshot *now)
{
	for (;;) {
		/* Empty lines before a request are ignored (RFC 9112, section 2.2). */
		while (now->ahead_size >= 2 && memcmp(now->ahead, "\r\n", 2) == 0) {
			now->ahead_size -= 2;
			memmove(now->ahead, now->ahead + 2, now->ahead_size);
		}
		char *end = memmem(now->ahead, now->ahead_size, "\r\n\r\n", 4);
		if (end)
			return end + 4 - now->ahead;
		if (now->ahead_size == AHEAD_MAX)
			return -1;
		ssize_t size = recv(connection, now->ahead + now->ahead_size, AHEAD_MAX - now->ahead_size, 0);
		if (size <= 0)
			return 0;
		now->ahead_size += (uint32_t)size;
	}
}

/* Answers the next request. Returns whether this server goes on with the connection. */
static int answer_request(int connection, struct snapshot *now)
{
	char head[AHEAD_MAX];
	struct request request = { .method = OTHER };
	ssize_t size = read_head(connection, now);
	if (size == 0)
		return 0;
	int is_valid = 0;
	if (size > 0) {
		/* The head without the CRLF of its last, empty line. */
		memcpy(head, now->ahead, (size_t)size);
		head[size - 2] = '\0';
		now->ahead_size -= (uint32_t)size;
		memmove(now->ahead, now->ahead + size, now->ahead_size);
		is_valid = strlen(head) == (size_t)size - 2 && parse_head(head, &request);
	}
	if (is_valid && request.method != OTHER)
		is_valid = decode_path(request.target, now->file, sizeof(now->file)) && is_below(now->file);
	now->closes = !is_valid || request.closes;
	if (!is_valid)
		return answer_error(connection, now, "400 Bad Request", request.method);
	if (request.method == OTHER)
		return answer_error(connection, now, "405 Method Not Allowed", request.method);
	return answer_file(connection, now, request.method);
}

static void serve(int connection)
{
	struct snapshot now = { 0 };
	ssize_t size = import_state(connection, &now, sizeof(now));
	if (size < 0)
		return;
	int is_whole = (size_t)size == offsetof(struct snapshot, ahead) + now.ahead_size && !now.file[sizeof(now.file) - 1];
	if (size > 0 && !is_whole) {
		fprintf(stderr, "the state of another version; the connection is closed\n");
		return;
	}
	int goes_on = now.file[0] == '\0' || resume_answer(connection, &now);
	while (goes_on && !now.closes)
		goes_on = answer_request(connection, &now);
	if (goes_on)
		finish(connection);
}

int main(int argc, char *argv[])
{
	if (argc < 3) {
		fprintf(stderr, "usage: file_server DIRECTORY ADDRESS:PORT...\n");
		return 2;
	}
	directory = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (directory < 0)
		fail("cannot open", argv[1]);
	run(argc - 2, argv + 2);
}
