# make demo       shows the main job on this machine, in under a minute after the build
# make test       everything that must hold: formatting, lints, unit, simulation and kernel tests, real failures
# make test-long  as make test, with many repetitions and more faults; takes hours; REPEAT=N: repetitions (default 10, minimum 1)
# make bench      speed compared with plain forwarding, stalls of many connections, stalls after a cut path;
#                 comparison with ns-2 if it is installed (apt-get install ns2)
# make lint       formatting and lints only
# make install    binaries, libsteadfast, man pages, the systemd units and examples under PREFIX (default /usr/local);
#                 needs fewer packages than test, demo and bench

PREFIX ?= /usr/local
# Cargo profile (Cargo.toml) and targets of the build. scripts/test sets its own values of both.
PROFILE ?= release
BUILT ?= --bins --lib
LAB = target/$(PROFILE)/steadfast-lab

.PHONY: demo test test-long bench format lint build install deps deps-build

demo: deps build
	@$(LAB) demo --out out/demo

test: deps format
	@scripts/test quick

test-long: deps format
	@scripts/test long

bench: deps build
	@! command -v ns >/dev/null || $(LAB) bench sim
	@$(LAB) bench pair; pair=$$?; $(LAB) bench scale --saturate 1; scale=$$?; $(LAB) bench coral || scale=$$?; $(LAB) bench migrate || scale=$$?; $(LAB) bench edge || scale=$$?; $(LAB) bench paths || scale=$$?; $(LAB) bench ft-tcp || scale=$$?; $(LAB) bench order || scale=$$?; \
		for way in "" "--rtt 20"; do \
			$(LAB) crash --measure --connections 10500 --workload request --repeat 3 $$way || scale=$$?; \
		done; \
		for node in primary backup; do \
			$(LAB) crash --measure --fault cut-service-path --links 2 --node $$node --workload request --repeat 5 || scale=$$?; \
		done; exit $$((pair | scale))

format:
	cargo fmt --all --check

lint: deps-build format
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" \
		cargo doc --quiet --workspace --no-deps --document-private-items

build: deps-build
	cargo build --profile $(PROFILE) --workspace $(BUILT)

deps:
	@scripts/deps all

deps-build:
	@scripts/deps build

install: build
	install -D -m 755 target/$(PROFILE)/steadfast $(DESTDIR)$(PREFIX)/sbin/steadfast
	install -D -m 755 $(LAB) $(DESTDIR)$(PREFIX)/bin/steadfast-lab
	target/$(PROFILE)/steadfast man --out $(DESTDIR)$(PREFIX)/share/man/man8
	sed 's|/usr/local/|$(PREFIX)/|' packaging/steadfast.service \
		| install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/steadfast.service
	sed 's|/usr/local/|$(PREFIX)/|' packaging/steadfast-edge.service \
		| install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/steadfast-edge.service
	sed 's|/usr/local/|$(PREFIX)/|' packaging/steadfast-tunnel.service \
		| install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/steadfast-tunnel.service
	for unit in steadfast-connect steadfast-accept steadfast-stage steadfast-annex; do \
		sed 's|/usr/local/|$(PREFIX)/|' packaging/$$unit.service \
			| install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/systemd/system/$$unit.service; \
	done
	install -D -m 644 packaging/peers.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/peers.toml
	install -D -m 644 packaging/connect.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/connect.toml
	install -D -m 644 packaging/accept.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/accept.toml
	install -D -m 644 packaging/annex.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/annex.toml
	install -D -m 644 packaging/stage.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/stage.toml
	install -D -m 644 packaging/tunnel.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/tunnel.toml
	install -D -m 644 packaging/edge.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/edge.toml
	install -D -m 644 packaging/pair.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/pair.toml
	install -D -m 644 packaging/redis.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/redis.toml
	install -D -m 644 crates/cli/steadfast.toml $(DESTDIR)$(PREFIX)/share/doc/steadfast/steadfast.toml
	install -D -m 644 docs/operating.md $(DESTDIR)$(PREFIX)/share/doc/steadfast/operating.md
	install -D -m 644 docs/edge-guide.md $(DESTDIR)$(PREFIX)/share/doc/steadfast/edge-guide.md
	install -D -m 644 docs/tunnel-guide.md $(DESTDIR)$(PREFIX)/share/doc/steadfast/tunnel-guide.md
	install -D -m 755 target/$(PROFILE)/libsteadfast.so $(DESTDIR)$(PREFIX)/lib/libsteadfast.so
	install -D -m 755 target/$(PROFILE)/libsteadfast_order.so $(DESTDIR)$(PREFIX)/lib/libsteadfast_order.so
	install -D -m 644 target/$(PROFILE)/libsteadfast.a $(DESTDIR)$(PREFIX)/lib/libsteadfast.a
	install -D -m 644 bindings/c/include/steadfast.h $(DESTDIR)$(PREFIX)/include/steadfast.h
	install -D -m 644 bindings/python/steadfast.py $(DESTDIR)$(PREFIX)/share/steadfast/python/steadfast.py
	install -D -m 644 bindings/README.md $(DESTDIR)$(PREFIX)/share/doc/steadfast/bindings.md
	install -D -m 755 packaging/examples/redis-state-sync $(DESTDIR)$(PREFIX)/share/doc/steadfast/examples/redis-state-sync
