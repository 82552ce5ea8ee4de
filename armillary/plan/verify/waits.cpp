#include "armillary/plan/verify/waits.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "armillary/plan/each_rank.h"
#include "armillary/plan/hazards.h"

namespace armillary::plan::verifier {
namespace {

/// Graph of things that happen. A compute op is one node; a batch is two, its start and its end;
/// messages from one batch to another are one, between the starts and the ends of the two.
class WaitGraph {
 public:
  struct Node {
    Rank rank = 0;
    int op = 0;  ///< For batches: the first op of the batch.
    int first_message = 0;
    int messages = 0;
    bool runs = false;  ///< A compute op.
  };
  struct Edge {
    int before;
    int after;
  };

  int add(Node node) {
    nodes_.push_back(node);
    return static_cast<int>(nodes_.size()) - 1;
  }
  void edge(int before, int after) { edges_.push_back({before, after}); }
  void reserve(std::size_t nodes, std::size_t edges) {
    nodes_.reserve(nodes);
    edges_.reserve(edges);
  }

  /// Another graph beside this one. Returns the place of its first node.
  int add(const WaitGraph& other) {
    const int first = static_cast<int>(nodes_.size());
    nodes_.insert(nodes_.end(), other.nodes_.begin(), other.nodes_.end());
    for (const Edge& e : other.edges_) edge(first + e.before, first + e.after);
    return first;
  }

  /// Nodes in an order that respects all edges; shorter than the graph if there is a cycle. What
  /// became possible last happens first: what it touches is still in the cache.
  std::vector<int> sort() {
    waits_.resize(nodes_.size());
    for (const Edge& edge : edges_) ++waits_[edge.after];
    const Followers followers(nodes_.size(), edges_);
    std::vector<int> ready;
    for (int n = static_cast<int>(nodes_.size()) - 1; n >= 0; --n) {
      if (waits_[n] == 0) ready.push_back(n);
    }
    std::vector<int> order;
    order.reserve(nodes_.size());
    while (!ready.empty()) {
      const int n = ready.back();
      ready.pop_back();
      order.push_back(n);
      for (const int next : followers.of(n)) {
        if (--waits_[next] == 0) ready.push_back(next);
      }
    }
    return order;
  }

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<Edge>& edges() const { return edges_; }
  /// After `sort`: does the node wait for ever?
  bool stuck(int node) const { return waits_[node] > 0; }

 private:
  /// Edges by their first node, one after the other.
  class Followers {
   public:
    Followers(std::size_t nodes, const std::vector<Edge>& edges)
        : begins_(nodes + 1), after_(edges.size()) {
      for (const Edge& edge : edges) ++begins_[edge.before];
      std::partial_sum(begins_.begin(), begins_.end(), begins_.begin());
      for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge) {
        after_[--begins_[edge->before]] = edge->after;
      }
    }
    std::span<const int> of(int node) const {
      return {after_.data() + begins_[node], after_.data() + begins_[node + 1]};
    }

   private:
    std::vector<std::size_t> begins_;
    std::vector<int> after_;
  };

  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<int> waits_;
};

/// Where an op starts and ends in the graph.
struct Span {
  int start = -1;
  int end = -1;
  bool operator==(const Span&) const = default;
};

struct Batch {
  int step = 0;
  Span span;
};

/// What one rank does, and in which order.
class RankWaits {
 public:
  RankWaits(const RankProgram& program, int limit) : program_(program), report_(limit) {
    add_ops();
    add_dependencies();
  }
  const WaitGraph& graph() const { return graph_; }
  WaitGraph take_graph() { return std::move(graph_); }
  const Report& report() const { return report_; }
  const Span& span(int op) const { return spans_[op]; }

 private:
  void add_ops() {
    std::map<Lane, Batch> last;
    int computed = -1;  // The compute op before.
    spans_.reserve(program_.ops.size());
    for (int i = 0; i < static_cast<int>(program_.ops.size()); ++i) {
      const Op& op = program_.ops[i];
      if (!op.is_comm()) {
        const int node = graph_.add({.rank = program_.rank, .op = i, .runs = true});
        if (computed >= 0) {
          check_step(i, program_.ops[computed].step);
          graph_.edge(spans_[computed].end, node);
        }
        computed = i;
        spans_.push_back({node, node});
        continue;
      }
      const auto before = last.find(op.lane);
      const bool first = before == last.end();
      if (!first) check_step(i, before->second.step);
      if (first || before->second.step != op.step) {
        const Span span{graph_.add({.rank = program_.rank, .op = i}),
                        graph_.add({.rank = program_.rank, .op = i})};
        graph_.edge(span.start, span.end);
        if (!first) graph_.edge(before->second.span.end, span.start);
        last[op.lane] = {op.step, span};
      }
      spans_.push_back(last[op.lane].span);
    }
  }

  void check_step(int i, int before) {
    const Op& op = program_.ops[i];
    if (before <= op.step) return;
    report_.add(program_.rank, i, "order", "lane {} goes back from step {} to {}", op.lane, before,
                op.step);
  }

  /// Ops of a lane follow each other anyway: of another lane the last one waited for is enough, and
  /// that only if no op before it in its own lane waits for as much.
  void add_dependencies() {
    // Of a lane, the last op of another that it waits for.
    std::map<std::pair<Lane, Lane>, int> reached;
    for_each_dependencies(program_, [&](int i, std::span<const int> waits) {
      const Lane own = program_.ops[i].lane;
      for (const int earlier : waits) {
        if (spans_[earlier].start != spans_[i].start) continue;
        report_.add(program_.rank, i, "order", "conflicts with op {} of its own batch", earlier);
      }
      for (auto earlier = waits.rbegin(); earlier != waits.rend(); ++earlier) {
        const Lane lane = program_.ops[*earlier].lane;
        if (lane == own) continue;
        int& last = reached.try_emplace({own, lane}, -1).first->second;
        if (*earlier <= last) continue;
        last = *earlier;
        graph_.edge(spans_[*earlier].end, spans_[i].start);
      }
    });
  }

  const RankProgram& program_;
  Report report_;
  WaitGraph graph_;
  std::vector<Span> spans_;
};

/// What all ranks do. Reports what is wrong with a rank on its own.
WaitGraph wait_graph(const Plan& plan, const std::vector<Message>& messages, Report& report) {
  std::vector<std::unique_ptr<RankWaits>> ranks(plan.ranks.size());
  for_each_rank(plan.problem.world, [&](Rank rank) {
    ranks[rank] = std::make_unique<RankWaits>(plan.ranks[rank], report.limit());
  });
  std::size_t nodes = messages.size();
  std::size_t edges = 4 * messages.size();
  for (const auto& waits : ranks) {
    nodes += waits->graph().nodes().size();
    edges += waits->graph().edges().size();
  }
  WaitGraph graph;
  graph.reserve(nodes, edges);
  std::vector<int> first_nodes;
  for (const auto& waits : ranks) {
    first_nodes.push_back(graph.add(waits->take_graph()));
    report.add(waits->report());
  }
  const auto span_of = [&](Rank rank, int op) {
    const Span& span = ranks[rank]->span(op);
    return Span{first_nodes[rank] + span.start, first_nodes[rank] + span.end};
  };
  const int count = static_cast<int>(messages.size());
  for (int first = 0, end = 0; first < count; first = end) {
    const Span send = span_of(messages[first].from, messages[first].send);
    const Span recv = span_of(messages[first].to, messages[first].recv);
    while (end < count && span_of(messages[end].from, messages[end].send) == send &&
           span_of(messages[end].to, messages[end].recv) == recv) {
      ++end;
    }
    const int node = graph.add({.rank = messages[first].to,
                                .op = messages[end - 1].recv,
                                .first_message = first,
                                .messages = end - first});
    graph.edge(send.start, node);
    graph.edge(recv.start, node);
    graph.edge(node, send.end);
    graph.edge(node, recv.end);
  }
  return graph;
}

/// Nodes of a cycle, each waiting for the next. Requires that some node never happened.
std::vector<const WaitGraph::Node*> find_cycle(const WaitGraph& graph) {
  // One that did not happen, for each that did not.
  std::vector<int> waits_for(graph.nodes().size(), -1);
  int at = -1;
  for (const WaitGraph::Edge& edge : graph.edges()) {
    if (!graph.stuck(edge.before)) continue;
    waits_for[edge.after] = edge.before;
    at = edge.before;
  }
  std::vector<bool> seen(graph.nodes().size());
  for (; !seen[at]; at = waits_for[at]) seen[at] = true;
  std::vector<const WaitGraph::Node*> cycle;
  for (; seen[at]; at = waits_for[at]) {
    seen[at] = false;
    cycle.push_back(&graph.nodes()[at]);
  }
  return cycle;
}

/// One diagnostic for every compute op and batch of the cycle.
void report_cycle(const WaitGraph& graph, const Plan& plan, Report& report) {
  using Node = WaitGraph::Node;
  std::vector<const Node*> cycle = find_cycle(graph);
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
  WaitGraph graph = wait_graph(plan, messages, report);
  if (!report.empty()) return {};
  const std::vector<int> order = graph.sort();
  if (order.size() < graph.nodes().size()) {
    report_cycle(graph, plan, report);
    return {};
  }
  std::vector<Event> events;
  events.reserve(order.size() + messages.size());
  for (const int n : order) {
    const WaitGraph::Node& node = graph.nodes()[n];
    for (int m = 0; m < node.messages; ++m) {
      events.push_back({.message = node.first_message + m});
    }
    if (node.runs) events.push_back({.rank = node.rank, .op = node.op});
  }
  return events;
}

}  // namespace armillary::plan::verifier
