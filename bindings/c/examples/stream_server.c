/*
 * stream_server [-k CHUNKS] [-s BYTES] ADDRESS:PORT...: streams bytes at a given rate, as the media server in Sultan et al.,
 * "Migratory TCP".
 *
 *   -k CHUNKS  number of chunks from one snapshot to the next (default 16; 0: no snapshots)
 *   -s BYTES   size to which snapshots are padded (default 0: no padding); the same on both nodes
 *
 * A client sends one line, "STREAM total chunk interval\n": the number of bytes that it wants, the bytes in one chunk (at most 64 KiB), and
 * the time from one chunk to the next in microseconds. Byte i of the stream is (i * 31 + 7) mod 251. The server then ends the connection.
 * After any other line, it ends the connection at once.
 */
#define _GNU_SOURCE
#include <inttypes.h>

#include "server.h"

enum { CHUNK_MAX = 64 * 1024, LINE_SIZE_MAX = 64 };

struct snapshot {
	/* Bytes of the whole stream, and bytes that were sent. */
	uint64_t total, sent;
	/* Bytes. */
	uint32_t chunk;
	/* Microseconds. */
	uint32_t interval;
};

static size_t chunks_per_snapshot = 16;
static size_t snapshot_size = sizeof(struct snapshot);

/* Reads the request's line. Returns whether it is a valid one. */
static int read_request(int connection, struct snapshot *now)
{
	char line[LINE_SIZE_MAX + 1];
	size_t size = 0;
	int end = 0;
	do {
		if (size == LINE_SIZE_MAX || recv(connection, &line[size], 1, 0) <= 0)
			return 0;
	} while (line[size++] != '\n');
	line[size] = '\0';
	int fields = sscanf(line, "STREAM %19" SCNu64 " %9" SCNu32 " %9" SCNu32 "%n", &now->total, &now->chunk, &now->interval, &end);
	int is_whole = fields == 3 && strcmp(line + end, "\n") == 0 && !strchr(line, '-');
	return is_whole && now->chunk > 0 && now->chunk <= CHUNK_MAX;
}

static void fill(unsigned char *bytes, size_t size, uint64_t offset)
{
	for (size_t i = 0; i < size; i++)
		bytes[i] = (unsigned char)(((offset + i) % 251 * 31 + 7) % 251);
}

static void wait_for_next(struct timespec *next, uint32_t interval)
{
	uint64_t nanoseconds = (uint64_t)next->tv_nsec + (uint64_t)interval * 1000;
	next->tv_sec += (time_t)(nanoseconds / 1000000000);
	next->tv_nsec = (long)(nanoseconds % 1000000000);
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, next, NULL);
}

/*
 * Sends the rest of the stream. `now` is the beginning of snapshot_size bytes, which are exported. Returns whether this server goes on with
 * the connection.
 */
static int send_stream(int connection, struct snapshot *now)
{
	struct timespec next;
	unsigned char bytes[CHUNK_MAX];
	clock_gettime(CLOCK_MONOTONIC, &next);
	while (now->sent < now->total) {
		size_t size = now->total - now->sent < now->chunk ? (size_t)(now->total - now->sent) : now->chunk;
		fill(bytes, size, now->sent);
		if (!send_all(connection, bytes, size, 0))
			return 0;
		now->sent += size;
		/* Counted from the stream's start, so that a server that goes on makes snapshots at the same places. */
		int is_due = chunks_per_snapshot > 0 && now->sent / now->chunk % chunks_per_snapshot == 0;
		if (is_due && !export_state(connection, now, snapshot_size))
			return 0;
		wait_for_next(&next, now->interval);
	}
	return 1;
}

static void serve(int connection)
{
	struct snapshot *now = calloc(1, snapshot_size);
	if (!now)
		return;
	ssize_t size = import_state(connection, now, snapshot_size);
	if (size > 0 && ((size_t)size != snapshot_size || now->chunk == 0 || now->chunk > CHUNK_MAX)) {
		fprintf(stderr, "the state of another version or size; the connection is closed\n");
		size = -1;
	}
	int is_valid = size > 0 || (size == 0 && read_request(connection, now));
	if (size >= 0 && (!is_valid || send_stream(connection, now)))
		finish(connection);
	free(now);
}

int main(int argc, char *argv[])
{
	int option;
	while ((option = getopt(argc, argv, "k:s:")) != -1) {
		if (option == '?')
			return 2;
		size_t value = strtoul(optarg, NULL, 10);
		if (option == 'k')
			chunks_per_snapshot = value;
		else if (value > snapshot_size)
			snapshot_size = value;
	}
	if (optind == argc || snapshot_size > STEADFAST_SNAPSHOT_MAX) {
		fprintf(stderr, "usage: stream_server [-k CHUNKS] [-s BYTES] ADDRESS:PORT...\n");
		return 2;
	}
	run(argc - optind, argv + optind);
}
