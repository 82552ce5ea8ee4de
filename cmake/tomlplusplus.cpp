// tomlplusplus.cpp: the part of toml++ that its headers declare as compiled elsewhere (TOML_HEADER_ONLY is 0).
#define TOML_IMPLEMENTATION
#include <toml++/toml.h>
