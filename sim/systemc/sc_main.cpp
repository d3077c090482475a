// libsystemc.so carries a main() that calls sc_main(), so every image that links it must define the
// latter. Nothing calls it here: programs have their own main(), and the kernel is driven by
// sim/systemc/kernel_thread. Weak, because a test's main file may bring its own.
extern "C" __attribute__((weak)) int sc_main(int, char**) { return 0; }
