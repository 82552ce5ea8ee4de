// Launchers are rows of a table: their variables, and marks that only they set. The first row that
// is set is taken and the others must agree; Slurm's is skipped if another launcher left a mark.
#include "armillary/host/launch/process_place.h"

#include <unistd.h>

#include <charconv>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/core/user_text.h"

namespace armillary::launch {
namespace {

/// The variables of one launcher; null where it has none.
struct Variables {
  std::string_view launcher;
  std::string_view engine;
  const char* rank;
  const char* world;
  const char* local_rank;
  const char* local_world;
  const char* address;
  const char* port;
  const char* listen_fd;
  const char* step;  ///< Set in the processes that it starts as ranks, and in no other.
  const char* node;  ///< Number of this host. `local_world` then has a count for each host.
  /// Variables that only this launcher sets. If one is set, those of Slurm are ignored: Slurm may
  /// have started the launcher, with other numbers.
  std::vector<const char*> marks;
};

/// Launchers in the order in which they are asked.
const std::vector<Variables>& launchers() {
  static const std::vector<Variables> all{{"torchrun",
                                           "c10d",
                                           "RANK",
                                           "WORLD_SIZE",
                                           "LOCAL_RANK",
                                           "LOCAL_WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "ARMILLARY_LISTEN_FD",
                                           nullptr,
                                           nullptr,
                                           {"TORCHELASTIC_RUN_ID", "ARMILLARY_LAUNCH"}},
                                          {"Slurm",
                                           "mpi",
                                           "SLURM_PROCID",
                                           "SLURM_NTASKS",
                                           "SLURM_LOCALID",
                                           "SLURM_STEP_TASKS_PER_NODE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           nullptr,
                                           "SLURM_STEP_ID",
                                           "SLURM_NODEID",
                                           {}},
                                          {"Open MPI",
                                           "mpi",
                                           "OMPI_COMM_WORLD_RANK",
                                           "OMPI_COMM_WORLD_SIZE",
                                           "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE",
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           {"OMPI_COMM_WORLD_RANK"}},
                                          {"PMI",
                                           "mpi",
                                           "PMI_RANK",
                                           "PMI_SIZE",
                                           "MPI_LOCALRANKID",
                                           "MPI_LOCALNRANKS",
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           {"MPI_LOCALNRANKS"}}};
  return all;
}

/// Reads whole numbers in a range, and texts, by the names of variables.
class VariableReader {
 public:
  VariableReader(const Lookup& lookup, std::string_view launcher)
      : lookup_(lookup), launcher_(launcher) {}

  /// Whether the variable is set and not empty; false for a null name.
  bool has(const char* name) const { return !text(name).empty(); }
  std::string_view text(const char* name) const {
    const char* const value = name == nullptr ? nullptr : lookup_(name);
    return value == nullptr ? std::string_view() : value;
  }
  int number(const char* name, int least, int most) const {
    const std::string_view value = text(name);
    int result = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
    if (error != std::errc() || end != value.data() + value.size() || result < least ||
        result > most) {
      fail<InvalidArgument>("launch: {} is {} ({}); a whole number from {} to {} is required", name,
                            quote(value), launcher_, least, most);
    }
    return result;
  }
  /// The entry of this node in a list of counts such as "2(x3),1", which stands for 2,2,2,1.
  int count_of_node(const char* counts, const char* node, int most) const {
    int left = number(node, 0, INT_MAX);
    const std::string list(text(counts));
    for (std::size_t at = 0; at < list.size();) {
      int count = 0;
      int times = 1;
      int size = 0;
      const char* const entry = list.c_str() + at;
      if (std::sscanf(entry, "%9d(x%9d)%n", &count, &times, &size) != 2 || size == 0) {
        times = 1;
        if (std::sscanf(entry, "%9d%n", &count, &size) != 1) break;
      }
      at += static_cast<std::size_t>(size);
      if ((at < list.size() && list[at] != ',') || count < 1 || count > most || times < 1) break;
      if (left < times) return count;
      left -= times;
      ++at;
    }
    fail<InvalidArgument>(
        "launch: {} is {} ({}); counts from 1 to {} are required, such as 2(x3),1, with one for "
        "node {}",
        counts, quote(list), launcher_, most, text(node));
  }

 private:
  const Lookup& lookup_;
  std::string_view launcher_;
};

/// The place by one launcher, or nothing.
std::optional<ProcessPlace> place_by(const Variables& from, const Lookup& lookup) {
  const VariableReader reader(lookup, from.launcher);
  // A world without a rank is no place: other programs set such variables too.
  if (!reader.has(from.rank)) return {};
  // A script of sbatch has the rank and world of a task, and is none.
  if (from.step != nullptr && !reader.has(from.step)) return {};
  if (!reader.has(from.world)) {
    fail<InvalidArgument>("launch: {} is set and {} is not ({}); both are required, or neither",
                          from.rank, from.world, from.launcher);
  }
  ProcessPlace place{
      .launcher = from.launcher, .engine = from.engine, .has_mpi = from.engine == "mpi"};
  place.world = reader.number(from.world, 1, INT_MAX);
  place.rank = reader.number(from.rank, 0, place.world - 1);
  // Without local numbers all ranks count as being on one host.
  place.local_world = place.world;
  if (reader.has(from.local_world)) {
    place.local_world = from.node != nullptr && reader.has(from.node)
                            ? reader.count_of_node(from.local_world, from.node, place.world)
                            : reader.number(from.local_world, 1, place.world);
  }
  place.local_rank =
      reader.has(from.local_rank) ? reader.number(from.local_rank, 0, place.world - 1) : place.rank;
  place.address = reader.text(from.address);
  if (reader.has(from.port)) place.port = reader.number(from.port, 1, 65535);
  if (reader.has(from.listen_fd)) place.listen_fd = reader.number(from.listen_fd, 0, INT_MAX);
  return place;
}

/// Whether a launcher left its mark, and so may be one that Slurm started.
bool is_marked(const Variables& of, const Lookup& lookup) {
  for (const char* mark : of.marks) {
    if (lookup(mark) != nullptr) return true;
  }
  return false;
}

}  // namespace

std::optional<ProcessPlace> find_place(const Lookup& lookup) {
  bool below_slurm = false;
  // mpirun inside of an allocation sees the variables of Slurm too, with the numbers of the job.
  for (const Variables& variables : launchers()) below_slurm |= is_marked(variables, lookup);

  // Launchers that both set their variables must agree; else nobody knows which rank this is.
  std::optional<ProcessPlace> taken;
  for (const Variables& variables : launchers()) {
    if (variables.launcher == "Slurm" && below_slurm) continue;
    const std::optional<ProcessPlace> place = place_by(variables, lookup);
    if (!place) continue;
    if (!taken) {
      taken = place;
    } else if (place->rank != taken->rank || place->world != taken->world) {
      fail<InvalidArgument>(
          "launch: rank {} of {} by the variables of {}, rank {} of {} by those of {}; one "
          "launcher "
          "is required, or equal numbers",
          taken->rank, taken->world, taken->launcher, place->rank, place->world, place->launcher);
    } else {
      taken->has_mpi |= place->has_mpi;
    }
  }
  return taken;
}

bool is_place_variable(std::string_view name) {
  for (const Variables& of : launchers()) {
    for (const char* one :
         {of.rank, of.world, of.local_rank, of.local_world, of.address, of.port, of.listen_fd}) {
      if (one != nullptr && name == one) return true;
    }
    for (const char* mark : of.marks) {
      if (name == mark) return true;
    }
  }
  // Prefixes of other variables that launchers set for processes.
  for (const std::string_view prefix :
       {"OMPI_COMM_WORLD_", "OMPI_MCA_ess", "OMPI_MCA_orte_", "OMPI_MCA_pmix", "OMPI_UNIVERSE_",
        "OMPI_APP_CTX_", "OMPI_NUM_APP_", "OMPI_FIRST_RANKS", "PMIX_", "PMI_", "HYDI_",
        "TORCHELASTIC_", "ARMILLARY_LAUNCH"}) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

std::vector<std::string> environment_without_place() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!is_place_variable(text.substr(0, text.find('=')))) all.emplace_back(text);
  }
  return all;
}

std::optional<ProcessPlace> find_place() {
  return find_place([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace armillary::launch
