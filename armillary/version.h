// version.h: the version of these headers. proof::version() is that of the library that was linked.
#pragma once

/// The major version; while it is 0, a minor version may change any interface.
#define ARMILLARY_VERSION_MAJOR 0
/// The minor version.
#define ARMILLARY_VERSION_MINOR 1
/// The patch; it changes no interface.
#define ARMILLARY_VERSION_PATCH 0

#define ARMILLARY_VERSION_QUOTED(text) #text
#define ARMILLARY_VERSION_JOINED(major, minor, patch) \
  ARMILLARY_VERSION_QUOTED(major)                     \
  "." ARMILLARY_VERSION_QUOTED(minor) "." ARMILLARY_VERSION_QUOTED(patch)
/// The version as text, such as "0.1.0".
#define ARMILLARY_VERSION                                                    \
  ARMILLARY_VERSION_JOINED(ARMILLARY_VERSION_MAJOR, ARMILLARY_VERSION_MINOR, \
                           ARMILLARY_VERSION_PATCH)
