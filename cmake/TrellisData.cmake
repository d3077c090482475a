# Libraries that read data: Arrow C++ is the pyarrow wheel of the virtual environment; PCRE2 and
# SentencePiece are the system's.
file(GLOB TRELLIS_PYARROW_DIR ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/pyarrow)
file(GLOB TRELLIS_ARROW_LIBRARY ${TRELLIS_PYARROW_DIR}/libarrow.so.*)
if(NOT EXISTS "${TRELLIS_ARROW_LIBRARY}")
  message(FATAL_ERROR
    "Arrow C++ not found in .venv: run scripts/setup first (it installs pyarrow, which carries it)")
endif()
add_library(trellis_arrow INTERFACE)
add_library(trellis::arrow ALIAS trellis_arrow)
target_include_directories(trellis_arrow SYSTEM INTERFACE ${TRELLIS_PYARROW_DIR}/include)
target_link_libraries(trellis_arrow INTERFACE ${TRELLIS_ARROW_LIBRARY})
target_link_options(trellis_arrow INTERFACE LINKER:-rpath,${TRELLIS_PYARROW_DIR})
file(GLOB TRELLIS_PARQUET_LIBRARY ${TRELLIS_PYARROW_DIR}/libparquet.so.*)
file(GLOB TRELLIS_ARROW_S3_LIBRARY ${TRELLIS_PYARROW_DIR}/libarrow_s3.so.*)

find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
# sentencepiece.pc would link the trainer's library too.
find_library(TRELLIS_SENTENCEPIECE_LIBRARY sentencepiece REQUIRED)
