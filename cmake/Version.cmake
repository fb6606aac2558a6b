# convoy_version.h with the project's version and the commit, when the source is a git checkout.
find_package(Git QUIET)
set(CONVOY_COMMIT "unknown")
if(Git_FOUND)
  execute_process(COMMAND "${GIT_EXECUTABLE}" -C "${CMAKE_SOURCE_DIR}" rev-parse --short=12 HEAD
    OUTPUT_VARIABLE CONVOY_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT CONVOY_COMMIT)
    set(CONVOY_COMMIT "unknown")
  endif()
  # Configure again when the checkout moves.
  set_property(DIRECTORY "${CMAKE_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/.git/HEAD")
endif()
configure_file("${CMAKE_SOURCE_DIR}/cmake/convoy_version.h.in" "${CMAKE_BINARY_DIR}/generated/convoy_version.h" @ONLY)
