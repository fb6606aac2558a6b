// Where what Convoy learns about a machine is kept between runs.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace convoy {

// $CONVOY_CACHE_DIR, or $XDG_CACHE_HOME/convoy, or ~/.cache/convoy; empty where none of the three is set. Not created.
std::filesystem::path cache_folder();
// A name of hardware as part of a file's name: letters and digits stay, the rest becomes '_'.
std::string file_word(std::string_view name);

}  // namespace convoy
