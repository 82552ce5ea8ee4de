#include "armillary/io/testing/power_cut.h"

#include <cstdlib>
#include <filesystem>
#include <ranges>
#include <utility>

namespace armillary::io {

namespace fs = std::filesystem;

/// A file that is written through a PowerCut.
class CutFile : public OutputFile {
 public:
  CutFile(PowerCut& power, std::string path)
      : power_(power), path_(std::move(path)), file_(real_file_system().create(path_)) {}

  void write(std::span<const std::byte> bytes) override {
    power_.count([&] { file_->write(bytes.first(bytes.size() / 2)); });
    power_.pending_.push_back({path_, [path = path_, size = synced_bytes_] {
                                 std::error_code gone;  // with its folder
                                 fs::resize_file(path, size, gone);
                               }});
    file_->write(bytes);
    bytes_ += bytes.size();
  }

  void sync() override {
    power_.count();
    file_->sync();
    synced_bytes_ = bytes_;
    power_.settle(path_);
  }

 private:
  PowerCut& power_;
  std::string path_;
  std::unique_ptr<OutputFile> file_;
  std::uintmax_t bytes_ = 0;
  std::uintmax_t synced_bytes_ = 0;
};

PowerCut::PowerCut(std::int64_t cut_at, Unsynced unsynced, std::string trash)
    : cut_at_(cut_at), unsynced_(unsynced), trash_(std::move(trash)) {}

void PowerCut::count(const std::function<void()>& half) {
  if (++calls_ != cut_at_) return;
  if (unsynced_ == Unsynced::Kept) half();
  if (unsynced_ == Unsynced::Lost) {
    for (const Pending& call : std::views::reverse(pending_)) call.undo();
  }
  std::_Exit(kPowerCut);
}

void PowerCut::entry_changed(const std::string& path, std::function<void()> undo) {
  pending_.push_back({fs::path(path).parent_path().string(), std::move(undo)});
}

void PowerCut::settle(const std::string& covered_by) {
  pending_.remove_if([&](const Pending& call) { return call.covered_by == covered_by; });
}

std::unique_ptr<OutputFile> PowerCut::create(const std::string& path) {
  count();
  entry_changed(path, [path] { fs::remove(path); });
  return std::make_unique<CutFile>(*this, path);
}

void PowerCut::make_folder(const std::string& path) {
  count();
  if (fs::exists(path)) return;
  entry_changed(path, [path] { fs::remove_all(path); });
  real_file_system().make_folder(path);
}

void PowerCut::sync_folder(const std::string& path) {
  count();
  real_file_system().sync_folder(path);
  settle(path);
}

void PowerCut::rename(const std::string& from, const std::string& to) {
  count();
  real_file_system().rename(from, to);
  entry_changed(to, [from, to] { fs::rename(to, from); });
}

void PowerCut::remove(const std::string& path) {
  count();
  if (!fs::exists(fs::symlink_status(path))) return;
  // Not removed but put aside, so that it can come back.
  const std::string aside = trash_ + "/" + std::to_string(calls_);
  fs::rename(path, aside);
  entry_changed(path, [path, aside] { fs::rename(aside, path); });
}

}  // namespace armillary::io
