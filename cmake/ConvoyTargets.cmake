# One static library per room of src/, one test executable per subject of tests/.

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CCACHE_PROGRAM}")
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

add_library(convoy_options INTERFACE)
target_include_directories(convoy_options INTERFACE "${CMAKE_SOURCE_DIR}/src")
target_compile_options(convoy_options INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wnull-dereference
  -Werror $<$<CXX_COMPILER_ID:Clang>:-Wno-gnu-zero-variadic-macro-arguments>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_BUILD_TYPE STREQUAL "Release")
  # GCC 12 reports false positives of these once it inlines the standard library.
  target_compile_options(convoy_options INTERFACE -Wno-null-dereference -Wno-maybe-uninitialized
    -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict)
endif()
if(CONVOY_SANITIZE)
  add_compile_options(-fsanitize=${CONVOY_SANITIZE} -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${CONVOY_SANITIZE})
  target_compile_options(convoy_options INTERFACE -Wno-maybe-uninitialized -Wno-null-dereference
    -Wno-stringop-overflow -Wno-array-bounds -Wno-restrict)
endif()

# convoy_library(NAME SOURCES … DEPS …): the static library convoy_NAME, also convoy::NAME.
function(convoy_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;PRIVATE_DEPS" ${ARGN})
  add_library(convoy_${name} STATIC ${ARG_SOURCES})
  add_library(convoy::${name} ALIAS convoy_${name})
  target_link_libraries(convoy_${name} PUBLIC convoy_options ${ARG_DEPS} PRIVATE ${ARG_PRIVATE_DEPS})
endfunction()

# convoy_test(NAME SOURCES … DEPS … [TIMEOUT seconds]): a GoogleTest executable registered with CTest.
function(convoy_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name}_test ${ARG_SOURCES})
  target_link_libraries(${name}_test PRIVATE convoy_options ${ARG_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE CONVOY_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/golden"
    CONVOY_SOURCE_DIR="${CMAKE_SOURCE_DIR}" CONVOY_BINARY_DIR="${CMAKE_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name}_test)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT})
endfunction()
