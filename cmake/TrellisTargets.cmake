# trellis_folder(<folder> "<purpose>")
#   what a folder is for, "." for this one: a line of ARCHITECTURE's map. tests/lint/architecture.py
#   reads it; nothing is built.
# trellis_library(<folder>_<sub> [ROOM folder] [SRCS …] [HDRS …] DEPS … [TORCH] [OBJECT] [SEPARATE]
#   [COLD])
#   alias trellis::<name>
# tests/lint/check_layers.py reads these declarations: a file includes what its own library and its
# DEPS have. A header belongs to the library of the source of its name; HDRS: others.
# ROOM: all .cpp files of that folder, "." for this one. TORCH: compiled against LibTorch with the
# shared precompiled header. OBJECT: keeps static registrations. SEPARATE: no unity build, for files
# of one symbol's variants. COLD: compiling it takes longer than it ever runs.
# trellis_test(<folder>/<unit> DEPS … [TORCH] [LABELS …] [TIMEOUT s] [SHARDS n] [SEPARATE])
#   tests/<folder>/<unit>_test.cpp, one process for all cases: starting LibTorch takes longer than
#   most of them. SHARDS: n processes, which run side by side. SEPARATE: a process per case, for
#   those that elaborate SystemC, which a process can do once.
# trellis_tests(<folder> UNITS <unit> … DEPS … [TORCH] [HALVED <unit> …] [LABELS …] [NEEDS …])
#   one program of tests/<folder>/<unit>_test.cpp of all units, compiled together, and a test for
#   each unit. Headers are most of the time that a small test takes to compile. HALVED: units that
#   run as two processes, next to each other. NEEDS: what the tests load or start.
# trellis_benchmark(<folder>/<unit> DEPS … [TORCH])
#   benchmarks/<folder>/<unit>_benchmark.cpp
# Tests that tests/quick.txt names have the label quick: `ctest -L quick` runs them, and the target
# quick builds no more than they need.
include(GoogleTest)
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/tests/quick.txt)
file(STRINGS ${PROJECT_SOURCE_DIR}/tests/quick.txt TRELLIS_QUICK REGEX "^[^#]")
list(TRANSFORM TRELLIS_QUICK REPLACE " .*" "")
add_custom_target(quick)

# g++ collects its garbage from 128 MiB on. A source with LibTorch takes 1.3 GiB anyway: from 1 GiB
# on, its time is an eighth less and its memory an eighth more.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(--param=ggc-min-heapsize=1000000)
endif()

# A clean build is mostly parsing headers: some sources of a library are compiled together. Off, a
# touched file is compiled alone.
set(TRELLIS_UNITY 0 CACHE STRING "sources of a library per translation unit; 0: each alone")

# g++ instantiates the templates that LibTorch's headers ask for in every translation unit, about
# seven seconds each with the precompiled header too: twice as many sources share one.
function(trellis_unity target)
  if(TRELLIS_UNITY)
    set(batch ${TRELLIS_UNITY})
    if(ARGV1 STREQUAL TORCH)
      math(EXPR batch "2 * ${TRELLIS_UNITY}")
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
endfunction()

add_library(trellis_warnings INTERFACE)
target_compile_options(trellis_warnings INTERFACE
  -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  $<$<BOOL:${TRELLIS_WERROR}>:-Werror>
  # Designated initializers leave out members on purpose: those have their defaults.
  -Wno-missing-field-initializers
  # g++ 12 reports overlaps, bounds and uninitialized parts of std::string and std::variant that
  # cannot happen (its bugs 105651, 105562).
  $<$<BOOL:${TRELLIS_WERROR}>:-Wno-error=restrict -Wno-error=array-bounds
  -Wno-error=maybe-uninitialized>)

function(trellis_use_torch target)
  target_link_libraries(${target} PUBLIC trellis::torch)
  if(TRELLIS_PCH)
    # A precompiled header serves only code of the same kind: executables too are compiled as
    # position-independent code.
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM trellis_torch_pch)
  endif()
endfunction()

function(trellis_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

function(trellis_folder)
endfunction()

function(trellis_library name)
  cmake_parse_arguments(ARG "TORCH;OBJECT;SEPARATE;COLD" "ROOM" "SRCS;HDRS;DEPS" ${ARGN})
  if(ARG_ROOM)
    file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_ROOM}/*.cpp)
    list(APPEND ARG_SRCS ${sources})
  endif()
  if(NOT ARG_SRCS)
    add_library(trellis_${name} INTERFACE)
    target_include_directories(trellis_${name} INTERFACE ${PROJECT_SOURCE_DIR})
    target_link_libraries(trellis_${name} INTERFACE ${ARG_DEPS})
  else()
    if(ARG_OBJECT)
      add_library(trellis_${name} OBJECT ${ARG_SRCS})
    else()
      add_library(trellis_${name} STATIC ${ARG_SRCS})
    endif()
    target_include_directories(trellis_${name} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(trellis_${name} PUBLIC ${ARG_DEPS} PRIVATE
      $<BUILD_INTERFACE:trellis_warnings>)
    if(ARG_TORCH)
      trellis_use_torch(trellis_${name})
      set(torch TORCH)
    endif()
    if(NOT ARG_SEPARATE)
      trellis_unity(trellis_${name} ${torch})
    endif()
    if(ARG_COLD)
      trellis_cold(trellis_${name})
    endif()
  endif()
  add_library(trellis::${name} ALIAS trellis_${name})
endfunction()

# The program of tests from these sources.
function(trellis_test_program target)
  cmake_parse_arguments(ARG "TORCH" "" "SRCS;DEPS" ${ARGN})
  add_executable(${target} ${ARG_SRCS})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE trellis_test_main trellis_warnings ${ARG_DEPS})
  trellis_cold(${target})
  if(ARG_TORCH)
    trellis_use_torch(${target})
    target_link_libraries(${target} PRIVATE trellis_allocator)
  elseif(TRELLIS_PCH)
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
    target_precompile_headers(${target} REUSE_FROM trellis_test_main)
  endif()
  target_compile_definitions(${target} PRIVATE
    TRELLIS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRELLIS_BUILD_DIR="${PROJECT_BINARY_DIR}")
endfunction()

function(trellis_tests folder)
  cmake_parse_arguments(ARG "TORCH" "" "UNITS;DEPS;HALVED;LABELS;NEEDS" ${ARGN})
  string(REPLACE "/" "_" program ${folder}_tests)
  list(APPEND ARG_UNITS ${ARG_HALVED})
  list(TRANSFORM ARG_UNITS REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/${folder}/\\1_test.cpp"
    OUTPUT_VARIABLE sources)
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  trellis_test_program(${program} SRCS ${sources} DEPS ${ARG_DEPS} ${torch})
  trellis_unity(${program} ${torch})
  if(ARG_NEEDS)
    add_dependencies(${program} ${ARG_NEEDS})
  endif()
  foreach(unit IN LISTS ARG_UNITS)
    string(REPLACE "/" "_" target ${folder}/${unit}_test)
    add_custom_target(${target})
    add_dependencies(${target} ${program})
    set(shards 1)
    if(unit IN_LIST ARG_HALVED)
      set(shards 2)
    endif()
    trellis_add_test(${folder}/${unit} ${shards} 300 "${ARG_LABELS}" ${program}
      --unit=${folder}/${unit})
  endforeach()
endfunction()

# Adds the label quick to a test that tests/quick.txt names. Further arguments: targets it needs.
function(trellis_label_quick test)
  if(test IN_LIST TRELLIS_QUICK)
    set_property(TEST ${test} APPEND PROPERTY LABELS quick)
    set_property(GLOBAL APPEND PROPERTY TRELLIS_QUICK_FOUND ${test})
    if(ARGN)
      add_dependencies(quick ${ARGN})
    endif()
  endif()
endfunction()

# The test, or its shards, of a program.
function(trellis_add_test name shards timeout labels)
  if(CMAKE_CXX_FLAGS MATCHES "-fsanitize")  # several times slower
    math(EXPR timeout "${timeout} * 5")
  endif()
  foreach(shard RANGE 1 ${shards})
    set(test ${name})
    if(shards GREATER 1)
      set(test ${name}:${shard}_of_${shards})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${test} COMMAND ${ARGN} --gtest_brief=1)
    set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout}
      ENVIRONMENT "GTEST_TOTAL_SHARDS=${shards};GTEST_SHARD_INDEX=${index}")
    list(GET ARGN 0 program)
    trellis_label_quick(${test} ${program})
  endforeach()
endfunction()

function(trellis_test unit)
  cmake_parse_arguments(ARG "TORCH;SEPARATE" "TIMEOUT;SHARDS" "DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  string(REPLACE "/" "_" target ${unit})
  if(ARG_TORCH)
    set(torch TORCH)
  endif()
  trellis_test_program(${target}_test SRCS ${PROJECT_SOURCE_DIR}/tests/${unit}_test.cpp
    DEPS ${ARG_DEPS} ${torch})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  if(ARG_SEPARATE)
    gtest_discover_tests(${target}_test TEST_PREFIX "${unit}:" DISCOVERY_TIMEOUT 120 DISCOVERY_MODE
      PRE_TEST NO_PRETTY_VALUES
      PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
    return()
  endif()
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  trellis_add_test(${unit} ${ARG_SHARDS} ${ARG_TIMEOUT} "${ARG_LABELS}" ${target}_test)
endfunction()

function(trellis_benchmark unit)
  cmake_parse_arguments(ARG "TORCH" "" "DEPS" ${ARGN})
  string(REPLACE "/" "_" target ${unit})
  add_executable(${target}_benchmark ${PROJECT_SOURCE_DIR}/benchmarks/${unit}_benchmark.cpp)
  target_include_directories(${target}_benchmark PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target}_benchmark PRIVATE benchmark::benchmark trellis_warnings
    ${ARG_DEPS})
  target_compile_definitions(${target}_benchmark PRIVATE
    TRELLIS_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRELLIS_BUILD_DIR="${PROJECT_BINARY_DIR}")
  if(ARG_TORCH)
    trellis_use_torch(${target}_benchmark)
    target_link_libraries(${target}_benchmark PRIVATE trellis_allocator)
  endif()
endfunction()
