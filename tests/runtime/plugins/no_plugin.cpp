// A library that is no plugin.
extern "C" int trellis_nothing() { return 0; }
