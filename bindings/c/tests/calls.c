/*
 * calls CALL...: makes calls of the library for one TCP connection. "child/CALL" makes one in a child process. For each call, it prints the
 * returned value, then errno after a failure and 0 otherwise. For an import, it also prints the size and the sum of the imported bytes.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "steadfast.h"

static int tcp_connection(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), connection = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, size) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&address, &size) || connect(connection, (struct sockaddr *)&address, size))
		abort();
	return connection;
}

static void print_outcome(int outcome)
{
	printf("%d %d\n", outcome, outcome < 0 ? errno : 0);
}

static void print_import(int outcome, const unsigned char *state, size_t size)
{
	unsigned long sum = 0;
	for (size_t i = 0; outcome > 0 && i < size; i++)
		sum += state[i];
	printf("%d %d %zu %lu\n", outcome, outcome < 0 ? errno : 0, size, sum);
}

static void call(const char *name, int connection)
{
	static unsigned char state[STEADFAST_SNAPSHOT_MAX + 1];
	const char *argument = strchr(name, ':');
	size_t size = argument ? strtoul(argument + 1, NULL, 10) : 0;
	if (strncmp(name, "export:", 7) == 0) {
		memset(state, 1, sizeof(state));
		print_outcome(steadfast_export_state(connection, state, size));
	} else if (strncmp(name, "nowait:", 7) == 0) {
		memset(state, 2, sizeof(state));
		print_outcome(steadfast_export_state_nowait(connection, state, size));
	} else if (strncmp(name, "import:", 7) == 0) {
		int outcome = steadfast_import_state(connection, state, &size);
		print_import(outcome, state, size);
	} else if (strcmp(name, "null") == 0) {
		print_outcome(steadfast_export_state(connection, NULL, 1));
		print_outcome(steadfast_export_state_nowait(connection, NULL, 1));
		print_outcome(steadfast_import_state(connection, state, NULL));
		size = 1;
		print_outcome(steadfast_import_state(connection, NULL, &size));
	} else if (strcmp(name, "closed") == 0) {
		print_outcome(steadfast_export_state(-1, state, 1));
		print_outcome(steadfast_export_state(1000000, state, 1));
	} else {
		abort();
	}
	fflush(stdout);
}

int main(int argc, char *argv[])
{
	int connection = tcp_connection();
	for (int i = 1; i < argc; i++) {
		const char *name = argv[i];
		if (strncmp(name, "child/", 6) != 0) {
			call(name, connection);
			continue;
		}
		pid_t child = fork();
		if (child == 0) {
			call(name + 6, connection);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
	return 0;
}
