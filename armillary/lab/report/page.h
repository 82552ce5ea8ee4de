// page.h: the files below page/, which the build puts into the library, and pages made of them.
// Internal to report. They are plain HTML, CSS and JavaScript; page/data.js and page/run.js know
// the form of the data.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace armillary::report {

/// The pages of a plan and of a run, with the marks `<!-- title -->`, `/* styles */`,
/// `/* scripts */` and `/* data */`, each once.
std::string_view page_html();
std::string_view run_page_html();
/// The style sheets and the scripts, in the order in which they stand in the page.
std::span<const std::string_view> page_styles();
std::span<const std::string_view> page_scripts();
std::span<const std::string_view> run_page_scripts();

/// The contents of a page.
struct PageParts {
  std::string_view html;
  std::span<const std::string_view> scripts;
  std::string title;
  std::string data;  ///< JSON.
};

/// The whole page, without any reference to the network.
std::string assembled(const PageParts& parts);

}  // namespace armillary::report
