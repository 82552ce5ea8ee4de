#include "armillary/plan/verify/waits.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>

#include "armillary/plan/hazards.h"

namespace armillary::plan::verifier {
namespace {

/// Graph of things that happen. A compute op is one node; a batch is two, its start and its end; a
/// message is one, between the starts and the ends of the batches at its two ends.
class WaitGraph {
 public:
  struct Node {
    Rank rank = 0;
    int op = 0;  ///< For batches: the first op of the batch.
    int message = -1;
    bool runs = false;  ///< A compute op.
    int waits = 0;
    std::vector<int> followers;
  };

  int add(Node node) {
    nodes_.push_back(std::move(node));
    return static_cast<int>(nodes_.size()) - 1;
  }
  void edge(int before, int after) {
    nodes_[before].followers.push_back(after);
    ++nodes_[after].waits;
  }

  /// Nodes in an order that respects all edges; shorter than the graph if there is a cycle.
  std::vector<int> sort() {
    std::deque<int> ready;
    for (int n = 0; n < static_cast<int>(nodes_.size()); ++n) {
      if (nodes_[n].waits == 0) ready.push_back(n);
    }
    std::vector<int> order;
    while (!ready.empty()) {
      const int n = ready.front();
      ready.pop_front();
      order.push_back(n);
      for (const int next : nodes_[n].followers) {
        if (--nodes_[next].waits == 0) ready.push_back(next);
      }
    }
    return order;
  }

  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  std::vector<Node> nodes_;
};

/// Where an op starts and ends in the graph.
struct Span {
  int start = -1;
  int end = -1;
};

struct Batch {
  int step = 0;
  Span span;
};

class Builder {
 public:
  Builder(const Plan& plan, Report& report) : plan_(plan), report_(report) {}

  WaitGraph build(const std::vector<Message>& messages) {
    for (const RankProgram& program : plan_.ranks) {
      spans_.emplace_back();
      add_ops(program);
      add_dependencies(program);
    }
    for (int m = 0; m < static_cast<int>(messages.size()); ++m) {
      const Message& message = messages[m];
      const Span& send = spans_[message.from][message.send];
      const Span& recv = spans_[message.to][message.recv];
      const int node = graph_.add({.rank = message.to, .op = message.recv, .message = m});
      graph_.edge(send.start, node);
      graph_.edge(recv.start, node);
      graph_.edge(node, send.end);
      graph_.edge(node, recv.end);
    }
    return std::move(graph_);
  }

 private:
  void add_ops(const RankProgram& program) {
    std::map<Lane, Batch> last;
    int last_compute = -1;
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      const Op& op = program.ops[i];
      if (!op.is_comm()) {
        const int node = graph_.add({.rank = program.rank, .op = i, .runs = true});
        if (last_compute >= 0) graph_.edge(last_compute, node);
        last_compute = node;
        spans_.back().push_back({node, node});
        continue;
      }
      const auto before = last.find(op.lane);
      const bool first = before == last.end();
      if (!first && before->second.step > op.step) {
        report_.add(program.rank, i, "order", "lane {} goes back from step {} to {}", op.lane,
                    before->second.step, op.step);
      }
      if (first || before->second.step != op.step) {
        const Span span{graph_.add({.rank = program.rank, .op = i}),
                        graph_.add({.rank = program.rank, .op = i})};
        graph_.edge(span.start, span.end);
        if (!first) graph_.edge(before->second.span.end, span.start);
        last[op.lane] = {op.step, span};
      }
      spans_.back().push_back(last[op.lane].span);
    }
  }

  void add_dependencies(const RankProgram& program) {
    const std::vector<std::vector<int>> waits = dependencies(program);
    const std::vector<Span>& spans = spans_.back();
    for (int i = 0; i < static_cast<int>(program.ops.size()); ++i) {
      for (const int earlier : waits[i]) {
        if (spans[earlier].start == spans[i].start) {
          report_.add(program.rank, i, "order", "conflicts with op {} of its own batch", earlier);
        } else {
          graph_.edge(spans[earlier].end, spans[i].start);
        }
      }
    }
  }

  const Plan& plan_;
  Report& report_;
  WaitGraph graph_;
  std::vector<std::vector<Span>> spans_;
};

/// Nodes of a cycle, each waiting for the next. Requires that some node never happened.
std::vector<const WaitGraph::Node*> find_cycle(const std::vector<WaitGraph::Node>& nodes) {
  std::vector<int> waits_for(nodes.size(), -1);  // One that did not happen, for each that did not.
  int at = -1;
  for (int n = 0; n < static_cast<int>(nodes.size()); ++n) {
    if (nodes[n].waits == 0) continue;
    for (const int follower : nodes[n].followers) waits_for[follower] = n;
    at = n;
  }
  std::vector<bool> seen(nodes.size());
  for (; !seen[at]; at = waits_for[at]) seen[at] = true;
  std::vector<const WaitGraph::Node*> cycle;
  for (; seen[at]; at = waits_for[at]) {
    seen[at] = false;
    cycle.push_back(&nodes[at]);
  }
  return cycle;
}

/// One diagnostic for every compute op and batch of the cycle.
void report_cycle(const WaitGraph& graph, const Plan& plan, Report& report) {
  using Node = WaitGraph::Node;
  std::vector<const Node*> cycle = find_cycle(graph.nodes());
  const auto op_of = [&](const Node* node) -> const Op& {
    return plan.ranks[node->rank].ops[node->op];
  };
  const auto same = [&](const Node* a, const Node* b) {
    if (a->rank != b->rank || op_of(a).is_comm() != op_of(b).is_comm()) return false;
    return op_of(a).is_comm() ? op_of(a).lane == op_of(b).lane && op_of(a).step == op_of(b).step
                              : a->op == b->op;
  };
  const auto first = std::min_element(cycle.begin(), cycle.end(), [](const Node* a, const Node* b) {
    return std::pair(a->rank, a->op) < std::pair(b->rank, b->op);
  });
  std::rotate(cycle.begin(), first, cycle.end());
  cycle.erase(std::unique(cycle.begin(), cycle.end(), same), cycle.end());
  if (cycle.size() > 1 && same(cycle.back(), cycle.front())) cycle.pop_back();
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const Node& other = *cycle[(i + 1) % cycle.size()];
    const Op& op = op_of(cycle[i]);
    report.add(cycle[i]->rank, cycle[i]->op, "order", "deadlock: {}{} waits for rank {} op {}",
               to_string(op.kind),
               op.is_comm() ? fmt::format(" (lane {}, step {})", op.lane, op.step) : "", other.rank,
               other.op);
  }
}

}  // namespace

std::vector<Event> order_events(const Plan& plan, const std::vector<Message>& messages,
                                Report& report) {
  WaitGraph graph = Builder(plan, report).build(messages);
  if (!report.empty()) return {};
  const std::vector<int> order = graph.sort();
  if (order.size() < graph.nodes().size()) {
    report_cycle(graph, plan, report);
    return {};
  }
  std::vector<Event> events;
  for (const int n : order) {
    const WaitGraph::Node& node = graph.nodes()[n];
    if (node.message >= 0) {
      events.push_back({.is_message = true, .message = messages[node.message]});
    } else if (node.runs) {
      events.push_back({.rank = node.rank, .op = node.op});
    }
  }
  return events;
}

}  // namespace armillary::plan::verifier
