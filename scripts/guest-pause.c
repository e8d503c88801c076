/*
 * A guest without an operating system (multiboot, 32 bits) that prints its clocks, for scripts/guest-pause. A line has eight hexadecimal
 * numbers: time-stamp counter; kvm-clock's stamp, time, multiplier, shift and flags; CMOS seconds; ACPI timer.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define MSR_KVM_SYSTEM_TIME_NEW 0x4b564d01
#define SERIAL 0x3f8
#define ACPI_TIMER 0x608 /* where SeaBIOS puts it */

__attribute__((section(".text.0"), used, aligned(4))) static const u32 multiboot[] = {0x1badb002, 0, -0x1badb002};

/* struct pvclock_vcpu_time_info */
static struct {
	volatile u32 version, zero;
	volatile u64 stamp, time;
	volatile u32 multiplier;
	volatile u8 shift, flags, zeros[2];
} clock __attribute__((aligned(64)));

static u8 stack[4096] __attribute__((used));

static void out(u16 port, u8 value) { asm volatile("outb %0, %1" ::"a"(value), "Nd"(port)); }

static u8 in(u16 port) {
	u8 value;
	asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static u32 in_word(u16 port) {
	u32 value;
	asm volatile("inl %1, %0" : "=a"(value) : "Nd"(port));
	return value;
}

static u64 counter(void) {
	u32 low, high;
	asm volatile("rdtsc" : "=a"(low), "=d"(high));
	return (u64)high << 32 | low;
}

static void print(u8 character) {
	while (!(in(SERIAL + 5) & 0x20))
		;
	out(SERIAL, character);
}

static void print_number(u64 number, u8 after) {
	for (int shift = 60; shift >= 0; shift -= 4)
		print("0123456789abcdef"[number >> shift & 15]);
	print(after);
}

__attribute__((used)) static void run(void) {
	asm volatile("wrmsr" ::"c"(MSR_KVM_SYSTEM_TIME_NEW), "a"((u32)&clock | 1), "d"(0));
	for (;;) {
		u32 version = clock.version;
		u64 now = counter(), stamp = clock.stamp, time = clock.time;
		u32 multiplier = clock.multiplier, shift = clock.shift, flags = clock.flags;
		if (version & 1 || version != clock.version)
			continue;
		out(0x70, 0);
		u8 seconds = in(0x71);
		u32 timer = in_word(ACPI_TIMER);
		u64 values[] = {now, stamp, time, multiplier, shift, flags, seconds, timer};
		for (int i = 0; i < 8; i++)
			print_number(values[i], i < 7 ? ' ' : '\n');
		for (u64 end = counter() + 100000000; counter() < end;)
			;
	}
}

__attribute__((naked, used)) void _start(void) { asm volatile("mov $stack + 4096, %esp; call run"); }
