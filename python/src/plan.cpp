// plan.cpp: plans, proofs and shards for Python. Native classes are Mask and Plan; the rest is
// numbers, texts, tuples and lists. plans.py and masks.py make the classes that users see.
// Python's lock is held while values of Python are read or made, and at no other time.
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/plan/json.h"
#include "armillary/plan/lower_bound.h"
#include "armillary/plan/passes/lower.h"
#include "armillary/plan/strategies/strategy.h"
#include "armillary/plan/text.h"
#include "armillary/plan/verify/verify.h"
#include "armillary/predict/tune/automatic.h"
#include "python/src/bind.h"

namespace armillary::python {
namespace py = pybind11;
namespace {

using NoGil = py::call_guard<py::gil_scoped_release>;

/// Returns action() with Python's lock released.
template <class Action>
auto without_gil(const Action& action) {
  const py::gil_scoped_release no_gil;
  return action();
}

/// The plans of some passes of one problem and strategy, lowered.
std::vector<plan::Plan> make_plans(const plan::Problem& problem, const std::string& strategy,
                                   const std::vector<std::string>& passes,
                                   const std::string& lower) {
  const auto lowerings = plan::parse_lowerings(lower);
  std::vector<plan::Pass> directions;
  directions.reserve(passes.size());
  for (const std::string& name : passes) {
    directions.push_back(name == "forward"    ? plan::Pass::Forward
                         : name == "backward" ? plan::Pass::Backward
                                              : plan::Pass::Replay);
  }
  std::vector<plan::Plan> plans =
      plan::make_plans(problem, tune::strategy_of(strategy, problem), directions);
  for (plan::Plan& plan : plans) plan = plan::lower(std::move(plan), lowerings);
  return plans;
}

/// Costs of every rank: bytes sent and received, bytes of slots, visible pairs, steps.
py::list traffic(const plan::Plan& plan) {
  const auto costs = without_gil([&] {
    std::vector<plan::Traffic> of_ranks;
    of_ranks.reserve(plan.ranks.size());
    for (const plan::RankProgram& program : plan.ranks) {
      of_ranks.push_back(plan::traffic(plan.problem, plan.blocks, program));
    }
    return of_ranks;
  });
  py::list ranks;
  for (const plan::Traffic& one : costs) {
    ranks.append(py::make_tuple(one.sent_bytes, one.received_bytes, one.peak_slot_bytes,
                                one.visible_pairs, one.steps));
  }
  return ranks;
}

py::list diagnostics_of(const std::vector<plan::Diagnostic>& diagnostics) {
  py::list list;
  for (const plan::Diagnostic& d : diagnostics)
    list.append(py::make_tuple(d.rank, d.op, d.rule, d.text));
  return list;
}

/// The tokens of every rank, in its order, as runs (begin, count, step, width).
py::list shards(const plan::Problem& problem) {
  const std::vector<plan::Runs> of_ranks =
      without_gil([&] { return plan::shards(problem.layout, problem.mask, problem.world).q; });
  py::list ranks;
  for (const plan::Runs& runs : of_ranks) {
    py::list list;
    for (const plan::Run& run : runs) {
      list.append(py::make_tuple(run.begin, run.count, run.step, run.width));
    }
    ranks.append(list);
  }
  return ranks;
}

/// Reads a problem of Python, and makes it without Python's lock: its mask may be long.
plan::Problem make_problem(const py::dict& fields) {
  const auto number = [&](const char* key) { return fields[key].cast<std::int64_t>(); };
  const auto text = [&](const char* key) { return fields[key].cast<std::string>(); };
  plan::Problem problem{.world = fields["world"].cast<int>(),
                        .batch = number("batch"),
                        .heads = fields["heads"].cast<int>(),
                        .kv_heads = fields["kv_heads"].cast<int>(),
                        .head_dim = fields["head_dim"].cast<int>(),
                        .value_dim = fields["value_dim"].cast<int>(),
                        .dtype = plan::parse_dtype(text("dtype")),
                        .layout = plan::parse_layout(text("layout")),
                        .transfer_dtype = plan::parse_transfer_dtype(text("wire"))};
  const plan::Lengths lengths{number("q_len"), number("kv_len")};
  const std::string mask = text("mask");
  const py::gil_scoped_release no_gil;
  problem.mask = plan::parse_mask(mask, lengths);
  plan::validate(problem);
  return problem;
}

/// A mask as parse_mask reads it; one that shows nothing is an empty band.
std::string text_of(const plan::Mask& mask) {
  if (mask.bands().empty()) return "bands:0-0/0-0/0..0";
  std::string text = "bands:";
  for (const plan::Band& band : mask.bands()) {
    if (text.back() != ':') text += ';';
    text += to_string(band);
  }
  return text;
}

void bind_mask(py::module_& module) {
  py::class_<plan::Mask>(module, "Mask")
      .def(py::init([](const std::string& text, std::int64_t q_len, std::int64_t kv_len) {
             return plan::parse_mask(text, {q_len, kv_len});
           }),
           py::arg("text"), py::arg("q_len"), py::arg("kv_len"), NoGil())
      .def_property_readonly("q_len", &plan::Mask::q_len)
      .def_property_readonly("kv_len", &plan::Mask::kv_len)
      .def("visible", &plan::Mask::visible, py::arg("q"), py::arg("k"))
      .def("text", &text_of, NoGil())
      .def(
          "intersect", [](const plan::Mask& a, const plan::Mask& b) { return intersect(a, b); },
          py::arg("other"), NoGil())
      .def(
          "area", [](const plan::Mask& mask) { return mask.area(); }, NoGil())
      .def("bands", [](const plan::Mask& mask) {
        py::list bands;
        for (const plan::Band& b : mask.bands()) {
          bands.append(py::make_tuple(b.q.begin, b.q.end, b.k.begin, b.k.end, b.lo, b.hi));
        }
        return bands;
      });
}

void bind_plans(py::module_& module) {
  py::class_<plan::Plan>(module, "Plan")
      .def_property_readonly("strategy", [](const plan::Plan& plan) { return plan.strategy; })
      .def_property_readonly("pass_name",
                             [](const plan::Plan& plan) { return to_string(plan.pass); })
      .def(
          "to_text", [](const plan::Plan& plan) { return plan::to_string(plan); }, NoGil())
      .def(
          "to_json", [](const plan::Plan& plan) { return plan::to_json(plan); }, NoGil())
      .def("traffic", &traffic)
      .def("ops",
           [](const plan::Plan& plan) {
             std::size_t ops = 0;
             for (const plan::RankProgram& program : plan.ranks) ops += program.ops.size();
             return ops;
           })
      .def(
          "verify",
          [](const plan::Plan& plan, int limit) {
            return diagnostics_of(without_gil([&] { return plan::verify(plan, limit); }));
          },
          py::arg("limit"))
      .def(
          "verify_saved",
          [](const plan::Plan& forward, const plan::Plan& backward, int limit) {
            return diagnostics_of(
                without_gil([&] { return plan::verify_saved(forward, backward, limit); }));
          },
          py::arg("backward"), py::arg("limit"));
  module.def(
      "make_plans",
      [](const py::dict& problem, const std::string& strategy,
         const std::vector<std::string>& passes, const std::string& lower) {
        const plan::Problem question = make_problem(problem);
        const py::gil_scoped_release no_gil;
        return make_plans(question, strategy, passes, lower);
      },
      py::arg("problem"), py::arg("strategy"), py::arg("passes"), py::arg("lower"));
  module.def(
      "parse_plan", [](const std::string& json) { return plan::parse_json(json); }, py::arg("json"),
      NoGil());
}

}  // namespace

void bind_plan(py::module_& module) {
  bind_mask(module);
  bind_plans(module);
  module.def(
      "shards", [](const py::dict& problem) { return shards(make_problem(problem)); },
      py::arg("problem"));
  module.def(
      "check_strategy",
      [](const py::dict& problem, const std::string& strategy) {
        const plan::Problem question = make_problem(problem);
        const py::gil_scoped_release no_gil;
        const plan::Strategy parsed = tune::strategy_of(strategy, question);
        plan::check_legal(question, parsed);
        return to_string(parsed);
      },
      py::arg("problem"), py::arg("strategy"));
  module.def(
      "legal_strategies",
      [](const py::dict& problem) {
        const plan::Problem question = make_problem(problem);
        const py::gil_scoped_release no_gil;
        std::vector<std::string> texts;
        for (const auto& one : plan::legal_strategies(question)) {
          texts.push_back(to_string(one));
        }
        return texts;
      },
      py::arg("problem"));
  module.def(
      "check_settings",
      [](const std::string& strategy, const std::string& layout,
         const std::string& transfer_dtype) {
        tune::check_strategy_text(strategy);
        plan::parse_layout(layout);
        plan::parse_transfer_dtype(transfer_dtype);
      },
      py::arg("strategy"), py::arg("layout"), py::arg("wire"));
  module.def("strategies", [] {
    py::list list;
    for (const plan::StrategyInfo& info : plan::strategies()) {
      list.append(py::make_tuple(info.name, usage(info), info.summary, info.paper));
    }
    return list;
  });
}

}  // namespace armillary::python
