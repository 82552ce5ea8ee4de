// A page is put together from its files and the data.
#include <string>
#include <string_view>

#include "armillary/core/error.h"
#include "armillary/lab/report/page.h"

namespace armillary::report {
namespace {

/// Replaces the mark, which is in the text once.
void fill(std::string& text, std::string_view mark, const std::string& value) {
  const std::size_t at = text.find(mark);
  ARMILLARY_CHECK(at != std::string::npos);
  text.replace(at, mark.size(), value);
}

/// The texts of files, one after the other.
std::string joined_files(std::span<const std::string_view> files) {
  std::string all;
  for (const std::string_view file : files) all += file;
  return all;
}

/// JSON that may stand in a script element: no text in it ends the element.
std::string for_script(const std::string& json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else {
      text += c;
    }
  }
  return text;
}

/// Text between tags.
std::string for_text(std::string_view plain) {
  std::string text;
  for (const char c : plain) {
    if (c == '<') {
      text += "&lt;";
    } else if (c == '&') {
      text += "&amp;";
    } else {
      text += c;
    }
  }
  return text;
}

}  // namespace

std::string assembled(const PageParts& parts) {
  std::string page(parts.html);
  fill(page, "/* styles */", joined_files(page_styles()));
  fill(page, "/* scripts */", joined_files(parts.scripts));
  // Texts of users come last, from the end on: no mark is looked for in them.
  fill(page, "/* data */", for_script(parts.data));
  fill(page, "<!-- title -->", for_text(parts.title));
  return page;
}

}  // namespace armillary::report
