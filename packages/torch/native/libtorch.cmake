# What both addons share: which libtorch, which C++ standard and ABI, and how a Node-API module is compiled.
# No find_package(Torch): it drags in the CUDA toolkit, MKL and protobuf, of which we need nothing.

foreach(variable PIPEWRIGHT_TORCH_DIR PIPEWRIGHT_NODE_API_INCLUDE)
  if(NOT DEFINED ${variable})
    message(FATAL_ERROR "${variable} is not set; build with: npx pipewright setup")
  endif()
endforeach()
if(NOT EXISTS ${PIPEWRIGHT_TORCH_DIR}/lib/libc10.so)
  message(FATAL_ERROR "no lib/libc10.so in ${PIPEWRIGHT_TORCH_DIR}; fetch libtorch with: npx pipewright setup")
endif()
if(NOT EXISTS ${PIPEWRIGHT_NODE_API_INCLUDE}/node_api.h)
  message(FATAL_ERROR "no node_api.h in ${PIPEWRIGHT_NODE_API_INCLUDE}; bring it with: npm ci")
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# The version: a wheel has version.py, the zip of libtorch only its headers.
set(PIPEWRIGHT_TORCH_VERSION "")
if(EXISTS ${PIPEWRIGHT_TORCH_DIR}/version.py)
  file(STRINGS ${PIPEWRIGHT_TORCH_DIR}/version.py line REGEX "^__version__ *=")
  string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" PIPEWRIGHT_TORCH_VERSION "${line}")
else()
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS ${PIPEWRIGHT_TORCH_DIR}/include/${header} AND NOT PIPEWRIGHT_TORCH_VERSION)
      file(STRINGS ${PIPEWRIGHT_TORCH_DIR}/include/${header} line REGEX "define TORCH_VERSION \"")
      string(REGEX MATCH "[0-9]+\\.[0-9]+\\.[0-9]+" PIPEWRIGHT_TORCH_VERSION "${line}")
    endif()
  endforeach()
endif()
if(NOT PIPEWRIGHT_TORCH_VERSION)
  message(FATAL_ERROR "cannot read the version of libtorch in ${PIPEWRIGHT_TORCH_DIR} (looked at version.py and version.h)")
endif()

# libtorch's own headers use C++20 from 2.13 on; the older ones do not all compile as C++20.
if(PIPEWRIGHT_TORCH_VERSION VERSION_LESS 2.13)
  set(CMAKE_CXX_STANDARD 17)
else()
  set(CMAKE_CXX_STANDARD 20)
endif()
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

# Which std::string the library was built with: the new one leaves its name in the symbols.
file(STRINGS ${PIPEWRIGHT_TORCH_DIR}/lib/libc10.so cxx11 REGEX "__cxx1112basic_string" LIMIT_COUNT 1)
if(cxx11)
  set(PIPEWRIGHT_CXX11_ABI 1)
else()
  set(PIPEWRIGHT_CXX11_ABI 0)
endif()
message(STATUS "libtorch ${PIPEWRIGHT_TORCH_VERSION}, C++${CMAKE_CXX_STANDARD}, cxx11 abi ${PIPEWRIGHT_CXX11_ABI}")

# A Node-API module NAME.node: hidden symbols, Node's own symbols left to the loader. libtorch is found through the link
# `libtorch` beside the module, so that one build serves wherever libtorch is.
function(pipewright_add_addon name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES
    PREFIX "" SUFFIX ".node"
    POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    INSTALL_RPATH "$ORIGIN/libtorch/lib"
    BUILD_WITH_INSTALL_RPATH ON)
  target_compile_definitions(${name} PRIVATE
    NAPI_VERSION=9 AT_PER_OPERATOR_HEADERS USE_C10D_GLOO USE_DISTRIBUTED
    NODE_GYP_MODULE_NAME=${name} _GLIBCXX_USE_CXX11_ABI=${PIPEWRIGHT_CXX11_ABI}
    PIPEWRIGHT_TORCH_VERSION="${PIPEWRIGHT_TORCH_VERSION}")
  target_include_directories(${name} PRIVATE ${PIPEWRIGHT_NODE_API_INCLUDE})
  # SYSTEM: warnings of libtorch's headers are not ours.
  target_include_directories(${name} SYSTEM PRIVATE ${PIPEWRIGHT_TORCH_DIR}/include
    ${PIPEWRIGHT_TORCH_DIR}/include/torch/csrc/api/include)
  # The wheels ship no gloo headers; pointers to gloo classes are all that the layouts need.
  if(NOT EXISTS ${PIPEWRIGHT_TORCH_DIR}/include/gloo)
    target_include_directories(${name} SYSTEM PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/distributed/gloo-stubs)
  endif()
  target_compile_options(${name} PRIVATE -Wall -Wextra -Wno-unused-parameter)
  # Messages name files as they are in the sources, not where somebody built them.
  target_compile_options(${name} PRIVATE
    "-ffile-prefix-map=${PIPEWRIGHT_TORCH_DIR}=libtorch" "-ffile-prefix-map=${CMAKE_CURRENT_FUNCTION_LIST_DIR}=native")
  if(PIPEWRIGHT_SANITIZE)
    target_compile_options(${name} PRIVATE -fsanitize=${PIPEWRIGHT_SANITIZE} -fno-omit-frame-pointer -g)
    target_link_options(${name} PRIVATE -fsanitize=${PIPEWRIGHT_SANITIZE})
  endif()
endfunction()
