// power_cut.cpp: a file system that loses power. It counts its calls and keeps, for each that no
// sync covers yet, the way to undo it; at the chosen call it undoes them, or keeps them and half of
// a write, and ends the process.
#include "armillary/io/testing/power_cut.h"

#include <cstdlib>
#include <filesystem>
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
    power_.pending_.push_back(
        {.path = path_,
         .covered_by = path_,
         .undo = [size = synced_bytes_](const std::string& path) { fs::resize_file(path, size); }});
    file_->write(bytes);
    bytes_ += bytes.size();
  }

  // The disk is played, so nothing waits for the real one.
  void sync() override {
    power_.count();
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
    for (auto call = pending_.rbegin(); call != pending_.rend(); ++call) call->undo(call->path);
  }
  std::_Exit(kPowerCut);
}

void PowerCut::entry_changed(UnsyncedCall call) {
  call.covered_by = fs::path(call.path).parent_path().string();
  pending_.push_back(std::move(call));
}

void PowerCut::settle(const std::string& covered_by) {
  for (auto call = pending_.begin(); call != pending_.end();) {
    if (call->covered_by != covered_by) {
      ++call;
      continue;
    }
    const UnsyncedCall lasting = *call;
    call = pending_.erase(call);
    settle_below(lasting);
    call = pending_.begin();
  }
}

void PowerCut::settle_below(const UnsyncedCall& lasting) {
  // Calls below the old name go on below the new one; those in a folder that is gone are over.
  const std::string old = lasting.removes ? lasting.path : lasting.renamed_from;
  if (old.empty()) return;
  const auto is_below = [&](const std::string& path) {
    return path == old || path.starts_with(old + "/");
  };
  if (lasting.removes) {
    pending_.remove_if([&](const UnsyncedCall& call) { return is_below(call.path); });
    return;
  }
  for (UnsyncedCall& call : pending_) {
    for (std::string* path : {&call.path, &call.covered_by}) {
      if (is_below(*path)) *path = lasting.path + path->substr(old.size());
    }
  }
}

std::unique_ptr<OutputFile> PowerCut::create(const std::string& path) {
  count();
  entry_changed({.path = path, .undo = [](const std::string& text) { fs::remove(text); }});
  return std::make_unique<CutFile>(*this, path);
}

void PowerCut::make_folder(const std::string& path) {
  count();
  if (fs::exists(path)) return;
  entry_changed({.path = path, .undo = [](const std::string& text) { fs::remove_all(text); }});
  real_file_system().make_folder(path);
}

void PowerCut::sync_folder(const std::string& path) {
  count();
  settle(path);
}

void PowerCut::rename(const std::string& from, const std::string& to) {
  count();
  real_file_system().rename(from, to);
  entry_changed({.path = to,
                 .undo = [from](const std::string& renamed) { fs::rename(renamed, from); },
                 .renamed_from = from});
}

void PowerCut::remove(const std::string& path) {
  count();
  if (!fs::exists(fs::symlink_status(path))) return;
  // Not removed but put aside, so that it can come back.
  const std::string aside = trash_ + "/" + std::to_string(calls_);
  fs::rename(path, aside);
  entry_changed({.path = path,
                 .undo = [aside](const std::string& removed) { fs::rename(aside, removed); },
                 .removes = true});
}

}  // namespace armillary::io
