// Part of every program that allocates with jemalloc (cmake/TrellisAllocator.cmake).

/// jemalloc's options, by the name that it looks for; MALLOC_CONF of the environment adds to them.
/// As many heaps as threads run at once: what a rank freed is there for the rank that runs next.
extern "C" const char* malloc_conf;
const char* malloc_conf = "percpu_arena:percpu";
