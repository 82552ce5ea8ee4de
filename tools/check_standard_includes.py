"""Checks that a file includes the standard headers of the names that it uses, or a header of ours does.

    python3 tools/check_standard_includes.py   list what is missing, exit 1 if any

Builds and clang-tidy read many sources as one, so a header that one of them forgot comes with another.
Headers of other libraries bring standard headers too; nothing may rely on that.
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ["armillary", "cli", "tests", "examples", "python"]

# Header -> names of namespace std that need it. Names that several headers declare are left out.
NAMES = {
    "algorithm": "all_of any_of clamp copy_n count_if fill find find_if lower_bound max_element min_element "
    "none_of nth_element remove_if sort stable_sort transform unique upper_bound",
    "array": "array",
    "atomic": "atomic atomic_thread_fence memory_order_relaxed",
    "bit": "bit_cast bit_ceil bit_width countr_zero popcount",
    "chrono": "chrono",
    "condition_variable": "condition_variable",
    "deque": "deque",
    "exception": "current_exception exception_ptr rethrow_exception terminate",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream",
    "functional": "function",
    "future": "async future packaged_task promise",
    "iostream": "cerr cout",
    "limits": "numeric_limits",
    "map": "map multimap",
    "memory": "make_shared make_unique shared_ptr unique_ptr weak_ptr",
    "mutex": "call_once lock_guard mutex once_flag scoped_lock unique_lock",
    "numeric": "accumulate gcd iota lcm",
    "optional": "nullopt optional",
    "queue": "priority_queue queue",
    "random": "mt19937 mt19937_64 normal_distribution uniform_int_distribution",
    "set": "multiset set",
    "span": "span",
    "sstream": "istringstream ostringstream stringstream",
    "stdexcept": "invalid_argument logic_error out_of_range runtime_error",
    "string": "getline stod stoi stoll string to_string",
    "string_view": "string_view",
    "system_error": "error_code system_error",
    "thread": "this_thread thread",
    "tuple": "make_tuple tie tuple",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "variant": "get_if holds_alternative monostate variant visit",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}

OURS = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
STANDARD = re.compile(r"^\s*#\s*include\s*<([a-z_]+)>", re.MULTILINE)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"')
USED = re.compile(r"\bstd::(?:ranges::)?(\w+)")


@functools.cache
def text(path):
    return path.read_text(encoding="utf-8")


def own_files(root, path):
    """`path` and all headers of ours that it includes, directly or not."""
    headers = {path}
    waiting = [path]
    while waiting:
        for name in OURS.findall(text(waiting.pop())):
            header = root / name
            if header.is_file() and header not in headers:
                headers.add(header)
                waiting.append(header)
    return headers


def missing(root, path):
    """Standard headers that `path` needs and does not include."""
    used = USED.findall(COMMENT_OR_TEXT.sub("", text(path)))
    needed = {HEADER_OF[name] for name in used if name in HEADER_OF}
    if not needed:
        return []
    return sorted(needed.difference(*(STANDARD.findall(text(file)) for file in own_files(root, path))))


def check(root):
    """Lines that say which headers are missing where."""
    lines = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix not in (".h", ".cpp"):
                continue
            for header in missing(root, path):
                lines.append(
                    f"{path.relative_to(root)}: uses names of <{header}>; #include <{header}> is required"
                )
    return lines


def main():
    lines = check(ROOT)
    for line in lines:
        print(line)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
