# LibTorch is the torch wheel of the project's own virtual environment (scripts/setup makes it).
# torch_cpu and c10 are linked directly: TorchConfig.cmake would add nothing that this project uses.
file(GLOB TRELLIS_TORCH_DIR ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
if(NOT EXISTS "${TRELLIS_TORCH_DIR}/lib/libtorch_cpu.so")
  message(FATAL_ERROR
    "LibTorch not found in .venv: run scripts/setup first (it installs torch==2.13.0 into .venv)")
endif()
file(READ "${TRELLIS_TORCH_DIR}/version.py" TRELLIS_TORCH_VERSION_FILE)
if(NOT TRELLIS_TORCH_VERSION_FILE MATCHES "__version__ = '(2\\.13\\.0[^']*)'")
  message(FATAL_ERROR
    "expected torch 2.13.0 in .venv, found another version: remove .venv and run scripts/setup")
endif()
set(TRELLIS_TORCH_VERSION "${CMAKE_MATCH_1}")

add_library(trellis_torch INTERFACE)
add_library(trellis::torch ALIAS trellis_torch)
target_include_directories(trellis_torch SYSTEM INTERFACE
  ${TRELLIS_TORCH_DIR}/include ${TRELLIS_TORCH_DIR}/include/torch/csrc/api/include)
# LibTorch is built with NDEBUG; without it its headers check flags that the library never sets, on
# every dispatch.
target_compile_definitions(trellis_torch INTERFACE NDEBUG)
# The wheel carries fmt's headers and no library of them.
target_compile_definitions(trellis_torch INTERFACE FMT_HEADER_ONLY=1)
target_link_directories(trellis_torch INTERFACE ${TRELLIS_TORCH_DIR}/lib)
target_link_libraries(trellis_torch INTERFACE torch_cpu c10 torch)
target_link_options(trellis_torch INTERFACE LINKER:-rpath,${TRELLIS_TORCH_DIR}/lib
  LINKER:--no-as-needed)

# One precompiled header for everything that sees LibTorch: parsing it once costs less than one
# source file.
option(TRELLIS_PCH "use the shared precompiled LibTorch header" ON)
if(TRELLIS_PCH)
  if(NOT EXISTS ${CMAKE_BINARY_DIR}/torch_pch.cpp)  # a fresh one would rebuild everything
    file(WRITE ${CMAKE_BINARY_DIR}/torch_pch.cpp "\n")
  endif()
  add_library(trellis_torch_pch OBJECT ${CMAKE_BINARY_DIR}/torch_pch.cpp)
  target_link_libraries(trellis_torch_pch PUBLIC trellis::torch)
  set_target_properties(trellis_torch_pch PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(trellis_torch_pch PRIVATE -fPIC)
  target_precompile_headers(trellis_torch_pch PRIVATE <ATen/ATen.h>
    <torch/csrc/autograd/custom_function.h>
    <torch/nn/module.h> <torch/csrc/distributed/c10d/ProcessGroup.hpp> <torch/library.h> <string>
    <vector> <unordered_map>)
endif()
