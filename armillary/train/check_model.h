// check_model.h: is a model over ranks the same as on one device?
//
//   sequence --+-- ranks: shard, model, attend_over_ranks, sums --> loss, gradients, outputs --.
//              '-- one device: model, attend_on_one_device -------> loss, gradients, outputs --+-->
//              rows
//
// Rows and bounds are those of core/check_rows.h, as in Python.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "armillary/comm/communicator.h"
#include "armillary/model/model.h"
#include "armillary/train/data.h"
#include "armillary/train/packed_text.h"
#include "armillary/train/recipe_parts.h"

namespace armillary::train {

/// One comparison: a value, and the bound that it must not exceed.
struct CheckRow {
  std::string name;
  double value = 0;
  double bound = 0;
  std::string note;
  /// Whether the value is within its bound; one that is not a number is not.
  bool ok() const { return value <= bound; }
};

/// Result of check_model, the same on every rank.
struct CheckReport {
  std::string title;
  std::vector<CheckRow> rows;
  int world = 1;    ///< Ranks; on one nothing is spread, and rows compare attention alone.
  bool ok() const;  ///< Whether all rows are within their bounds.
};

/// The report as lines of text, and as JSON.
std::string describe(const CheckReport& report);
nlohmann::json to_json(const CheckReport& report);

/// The model that is checked, for a recipe that may differ from the one given to check_model in
/// recomputation and dtype only.
using MakeModel = std::function<std::unique_ptr<model::Model>(const Recipe& recipe)>;

/// Compares a model, over the ranks of `comm` and with the recipe's [parallelism], with the same
/// model on one device, on sequence 0 of `data`, with the parameters of the folder `init_from`
/// (checkpoint/model_folder.h), or drawn from training.seed if none is named. Collective. Every
/// rank holds the whole model twice, three times in bf16, and an S x S matrix a head:
/// training.seq_len should be some hundred.
///
/// The leak probe changes the middle and the last token.
/// @throws on every rank InvalidArgument as checked_sequence or load_parameters, if sequences or
/// parameters differ between ranks, or if the model calls no attention; CommError as the
/// communicator.
CheckReport check_model(comm::Communicator& comm, const MakeModel& make_model, const Data& data,
                        const Recipe& recipe, const std::string& init_from = {});

/// Documents of random bytes, about eight in a sequence: data for a recipe that names none.
PackedText random_text(std::int64_t seq_len, std::int64_t seed);

}  // namespace armillary::train
