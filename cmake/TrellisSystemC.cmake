find_package(PkgConfig REQUIRED)
pkg_check_modules(systemc REQUIRED IMPORTED_TARGET GLOBAL systemc)
add_library(trellis_systemc INTERFACE)
add_library(trellis::systemc ALIAS trellis_systemc)
target_link_libraries(trellis_systemc INTERFACE PkgConfig::systemc)
# Debian's libsystemc carries a C++17 tag in its link-time API check; C++20 code must state that
# tag.
target_compile_definitions(trellis_systemc INTERFACE SC_CPLUSPLUS=201703L)
