// page.h: the files below page/, which the build puts into the library. Internal to report. They
// are plain HTML, CSS and JavaScript; page/data.js knows the form of the data.
#pragma once

#include <span>
#include <string_view>

namespace armillary::report {

/// The page with the marks `<!-- title -->`, `/* styles */`, `/* scripts */` and `/* data */`, each
/// once.
std::string_view page_html();
/// The style sheets and the scripts, in the order in which they stand in the page.
std::span<const std::string_view> page_styles();
std::span<const std::string_view> page_scripts();

}  // namespace armillary::report
