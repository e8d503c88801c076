/*
 * A TCP server on several addresses, with one thread per connection. The including file defines serve(), which serves one connection, and
 * returns when this server has nothing more to do for it.
 */
#ifndef SERVER_H
#define SERVER_H

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "steadfast.h"

static void serve(int connection);

static _Noreturn void fail(const char *step, const char *object)
{
	fprintf(stderr, "%s %s: %s\n", step, object, strerror(errno));
	exit(1);
}

/* A socket that listens at `address`, which is ADDRESS:PORT or [IPV6]:PORT. */
static int listen_at(const char *address)
{
	char host[256];
	const char *colon = strrchr(address, ':');
	size_t length = colon ? (size_t)(colon - address) : 0;
	int is_bracketed = length >= 2 && address[0] == '[' && address[length - 1] == ']';
	if (length == 0 || length >= sizeof(host)) {
		fprintf(stderr, "not ADDRESS:PORT: %s\n", address);
		exit(2);
	}
	snprintf(host, sizeof(host), "%.*s", (int)length - 2 * is_bracketed, address + is_bracketed);
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM }, *found;
	int error = getaddrinfo(host, colon + 1, &hints, &found);
	if (error) {
		fprintf(stderr, "not ADDRESS:PORT: %s: %s\n", address, gai_strerror(error));
		exit(2);
	}
	int listener = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0)
		fail("cannot open a socket for", address);
	int on = 1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	/* So that 0.0.0.0 and [::] can have the same port. */
	if (found->ai_family == AF_INET6)
		setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on));
	if (bind(listener, found->ai_addr, found->ai_addrlen) || listen(listener, SOMAXCONN))
		fail("cannot listen at", address);
	freeaddrinfo(found);
	return listener;
}

static void print_address(int listener)
{
	struct sockaddr_storage address;
	socklen_t size = sizeof(address);
	char host[128], port[8];
	getsockname(listener, (struct sockaddr *)&address, &size);
	getnameinfo((struct sockaddr *)&address, size, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
	printf(address.ss_family == AF_INET6 ? " [%s]:%s" : " %s:%s", host, port);
}

static void *run_connection(void *argument)
{
	int connection = (int)(intptr_t)argument;
	serve(connection);
	close(connection);
	return NULL;
}

static void *run_listener(void *argument)
{
	int listener = (int)(intptr_t)argument, on = 1;
	pthread_attr_t detached;
	pthread_t thread;
	pthread_attr_init(&detached);
	pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
	while (1) {
		int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (connection < 0) {
			/* Nothing to accept after all, or too many open files. */
			usleep(10000);
			continue;
		}
		setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
		if (pthread_create(&thread, &detached, run_connection, (void *)(intptr_t)connection))
			close(connection);
	}
	return NULL;
}

/* Serves connections to `count` addresses. Prints one line when it is ready. */
static _Noreturn void run(int count, char *const addresses[])
{
	int *listeners = calloc((size_t)count, sizeof(*listeners));
	if (!listeners)
		fail("cannot listen at", addresses[0]);
	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < count; i++)
		listeners[i] = listen_at(addresses[i]);
	printf("ready:");
	for (int i = 0; i < count; i++)
		print_address(listeners[i]);
	printf("\n");
	fflush(stdout);
	for (int i = 1; i < count; i++) {
		pthread_t thread;
		errno = pthread_create(&thread, NULL, run_listener, (void *)(intptr_t)listeners[i]);
		if (errno)
			fail("cannot start a thread for", addresses[i]);
	}
	run_listener((void *)(intptr_t)listeners[0]);
	abort();
}

/* Sends all of `bytes`. Returns whether it could. */
static int send_all(int connection, const void *bytes, size_t size, int flags)
{
	for (size_t sent = 0; sent < size;) {
		ssize_t now = send(connection, (const char *)bytes + sent, size - sent, flags);
		if (now < 0)
			return 0;
		sent += (size_t)now;
	}
	return 1;
}

/*
 * Ends the output, then reads until the client ends its input too. If a server closes a connection with unread input, TCP resets it, and
 * the client may lose the end of the output.
 */
static void finish(int connection)
{
	char unused[4096];
	struct timeval limit = { .tv_sec = 1 };
	setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	shutdown(connection, SHUT_WR);
	for (int reads = 0; reads < 256 && recv(connection, unused, sizeof(unused), 0) > 0; reads++) {
	}
}

/*
 * Imports the state of a continued connection. Returns its size, 0 for a new connection, and -1 if this server must close the connection.
 * A connection of an unprotected address is new.
 */
static ssize_t import_state(int connection, void *state, size_t size)
{
	switch (steadfast_import_state(connection, state, &size)) {
	case 1:
		return (ssize_t)size;
	case 0:
		return 0;
	}
	if (errno == ENOTSUP)
		return 0;
	if (errno != EMIGRATED && errno != ENOTCONN)
		perror("cannot import a state; the connection is closed");
	return -1;
}

/*
 * Exports a state without waiting. Returns whether this server goes on with the connection: after a failure, a takeover would go on from an
 * earlier snapshot.
 */
static int export_state(int connection, const void *state, size_t size)
{
	if (steadfast_export_state_nowait(connection, state, size) == 0)
		return 1;
	if (errno == EMIGRATED || errno == ENOTCONN)
		return 0;
	if (errno != ENOTSUP)
		perror("cannot export a state; a takeover would go on from an earlier one");
	return 1;
}

#endif
