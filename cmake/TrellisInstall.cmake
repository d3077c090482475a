# cmake --install PREFIX: the program, its libraries and data, and what find_package(trellis) reads.
#   bin/trellis
#   lib/libtrellis_*.so                     found relative to the program and to each other;
#                                           LibTorch and Arrow stay where this build found them
#   include/trellis/device/plugin.h         the C ABI of a device
#   include/trellis/{base,runtime,trainer,…}  headers of the trainer's layers
#   lib/cmake/trellis/trellisConfig.cmake   trellis::plugin, trellis::neuron, trellis::nxd
#   share/trellis/                          hardware descriptions, published rows, examples
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(libraries trellis_neuron trellis_torch_device trellis_c10d trellis_trainer trellis_parquet
  trellis_s3 trellis_nxd)
set_target_properties(trellis PROPERTIES INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}"
  INSTALL_RPATH_USE_LINK_PATH ON)
set_target_properties(${libraries} PROPERTIES INSTALL_RPATH "$ORIGIN"
  INSTALL_RPATH_USE_LINK_PATH ON)
install(TARGETS trellis RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS ${libraries} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES device/plugin.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trellis/device)
foreach(room base traces runtime sim trainer)
  install(DIRECTORY ${room}/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/trellis/${room}
    FILES_MATCHING PATTERN "*.h" PATTERN app EXCLUDE PATTERN allocator EXCLUDE
    PATTERN systemc EXCLUDE PATTERN configs EXCLUDE PATTERN calibration EXCLUDE)
endforeach()

set(share ${CMAKE_INSTALL_DATADIR}/trellis)
install(DIRECTORY sim/configs/ DESTINATION ${share}/configs FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY sim/config/calibration/ DESTINATION ${share}/configs/calibration
  FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY benchmarks/published/ DESTINATION ${share}/published
  FILES_MATCHING PATTERN "*.yaml")
install(DIRECTORY device/python/trellis_neuron/nki/ DESTINATION ${share}/nki
  FILES_MATCHING PATTERN "*.py")
install(FILES examples/quickstart.yaml examples/prices.yaml examples/verify_llama.yaml
  examples/llama3_8b_trn1.yaml DESTINATION ${share}/examples)

set(package ${CMAKE_INSTALL_LIBDIR}/cmake/trellis)
configure_package_config_file(cmake/trellisConfig.cmake.in
  ${PROJECT_BINARY_DIR}/trellisConfig.cmake INSTALL_DESTINATION ${package}
  PATH_VARS CMAKE_INSTALL_INCLUDEDIR CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_BINDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/trellisConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/trellisConfig.cmake
  ${PROJECT_BINARY_DIR}/trellisConfigVersion.cmake DESTINATION ${package})
