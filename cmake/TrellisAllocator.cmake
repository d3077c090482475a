# Programs that train allocate with jemalloc. LibTorch asks for aligned blocks, which glibc 2.36
# cuts out of larger ones and never takes from a thread's cache; and threads of ranks that take
# turns keep what they freed in separate heaps.
find_library(TRELLIS_JEMALLOC libjemalloc_pic.a REQUIRED)  # an executable is position-independent
add_library(trellis_allocator INTERFACE)
if(NOT CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # a sanitizer has its own allocator
  add_library(trellis_allocator_options OBJECT ${PROJECT_SOURCE_DIR}/base/allocator/options.cpp)
  target_link_libraries(trellis_allocator INTERFACE
    $<TARGET_OBJECTS:trellis_allocator_options> ${TRELLIS_JEMALLOC} -Wl,-u,malloc)
endif()
