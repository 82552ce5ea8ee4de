// Rule `order`, by a graph of waits. (1) RankWaits makes the graph of one rank, on all cores: ops
// and batches in lane order, and waits through slots (hazards.h). (2) wait_graph() puts the graphs
// of all ranks side by side and connects them by messages and joint ops. (3) A topological sort
// gives the order of actions; nodes that are left over are on or behind a cycle, of which one is
// found and printed.
#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "armillary/plan/program/batches.h"
#include "armillary/plan/program/check.h"
#include "armillary/plan/program/hazards.h"
#include "armillary/plan/program/parallel_for_ranks.h"

namespace armillary::plan {
namespace {

/// Graph of actions; an edge says that one must come before the other. A compute op is one node. A
/// batch is two nodes, its start and its end; so is each rank's part in a joint op. All messages
/// from one batch to another are one node, after the starts and before the ends of both batches. A
/// joint op is one node after the starts and before the ends of all its parts.
class WaitGraph {
 public:
  struct WaitNode {
    Rank rank = 0;
    int op = 0;             ///< The compute op; the first op of a batch; the receive of a message.
    int first_message = 0;  ///< The number of a joint op.
    int messages = 0;
    bool runs = false;   ///< True for a compute op.
    bool joint = false;  ///< True for a joint op.
  };
  struct Edge {
    int before;
    int after;
  };

  int add(WaitNode node) {
    nodes_.push_back(node);
    return static_cast<int>(nodes_.size()) - 1;
  }
  void edge(int before, int after) { edges_.push_back({before, after}); }
  void reserve(std::size_t nodes, std::size_t edges) {
    nodes_.reserve(nodes);
    edges_.reserve(edges);
  }

  /// Adds the nodes and edges of another graph. Returns the index of its first node here.
  int add(const WaitGraph& other) {
    const int first = static_cast<int>(nodes_.size());
    nodes_.insert(nodes_.end(), other.nodes_.begin(), other.nodes_.end());
    for (const Edge& e : other.edges_) edge(first + e.before, first + e.after);
    return first;
  }

  /// Nodes in an order that respects all edges; fewer than the graph has if there is a cycle. The
  /// ready nodes are a stack, so the node that became ready last comes first, while the slots that
  /// it touches are still in the cache.
  std::vector<int> sort() {
    waits_.resize(nodes_.size());
    waves_.resize(nodes_.size());
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
        waves_[next] = std::max(waves_[next], waves_[n] + 1);
        if (--waits_[next] == 0) ready.push_back(next);
      }
    }
    return order;
  }

  const std::vector<WaitNode>& nodes() const { return nodes_; }
  const std::vector<Edge>& edges() const { return edges_; }
  /// True if `sort` did not come to the node.
  bool stuck(int node) const { return waits_[node] > 0; }
  /// The longest way of edges to a node. Requires `sort`.
  int wave(int node) const { return waves_[node]; }

 private:
  /// The edges sorted by their first node, in one array (compressed sparse rows).
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

  std::vector<WaitNode> nodes_;
  std::vector<Edge> edges_;
  std::vector<int> waits_;  ///< By node: edges into it that are still open.
  std::vector<int> waves_;  ///< By node.
};

/// The nodes at which a batch starts and ends; one and the same node for a compute op.
struct BatchSpan {
  int start = -1;
  int end = -1;
  bool operator==(const BatchSpan&) const = default;
};

/// The graph of one rank. Nodes are added batch by batch; messages are not in it yet.
class RankWaits {
 public:
  RankWaits(const RankProgram& program, int limit)
      : program_(program), batches_(program), diagnostics_(limit) {
    add_batches();
    add_dependencies();
  }
  const WaitGraph& graph() const { return graph_; }
  WaitGraph take_graph() { return std::move(graph_); }
  const Diagnostics& diagnostics() const { return diagnostics_; }
  const BatchSpan& span(int op) const { return spans_[batches_.of(op)]; }

 private:
  /// Adds the nodes of all batches, and the edges that keep the order of each lane.
  void add_batches() {
    const int count = static_cast<int>(batches_.all().size());
    std::vector<int> last(batches_.first().size(), -1);  // By lane: its last batch so far.
    spans_.reserve(count);
    for (int b = 0; b < count; ++b) {
      const Batch& batch = batches_[b];
      const int op = batches_.ops(batch).front();
      const bool runs =
          !program_.ops[op].is_comm() && !(*program_.words)[program_.ops[op].kind].joint;
      const int start = graph_.add({.rank = program_.rank, .op = op, .runs = runs});
      const int end = runs ? start : graph_.add({.rank = program_.rank, .op = op});
      if (!runs) graph_.edge(start, end);
      const int before = std::exchange(last[batch.lane], b);
      if (before >= 0) {
        check_step(op, batches_[before].step);
        graph_.edge(spans_[before].end, start);
      }
      spans_.push_back({start, end});
    }
  }

  /// Steps of a lane must not decrease.
  void check_step(int i, int before) {
    const Op& op = program_.ops[i];
    if (before <= op.step) return;
    diagnostics_.add(program_.rank, i, "order", "lane {} goes back from step {} to {}", op.lane,
                     before, op.step);
  }

  /// Adds the waits through slots. Ops of one lane follow each other anyway, so an op needs one
  /// edge per other lane, from the last op there that it waits for; and no edge if an earlier op of
  /// its own lane waits for that op or a later one already.
  void add_dependencies() {
    // By (own lane, other lane): the last op of the other lane that an edge comes from.
    std::map<std::pair<Lane, Lane>, int> reached;
    for_each_dependencies(program_, [&](int i, std::span<const int> waits) {
      const Lane own = program_.ops[i].lane;
      // Ops of one batch start together, so they must not wait for each other.
      for (const int earlier : waits) {
        if (batches_.of(earlier) != batches_.of(i)) continue;
        diagnostics_.add(program_.rank, i, "order", "conflicts with op {} of its own batch",
                         earlier);
      }
      for (auto earlier = waits.rbegin(); earlier != waits.rend(); ++earlier) {
        const Lane lane = program_.ops[*earlier].lane;
        if (lane == own) continue;
        int& last = reached.try_emplace({own, lane}, -1).first->second;
        if (*earlier <= last) continue;
        last = *earlier;
        graph_.edge(span(*earlier).end, span(i).start);
      }
    });
  }

  const RankProgram& program_;
  const Batches batches_;
  Diagnostics diagnostics_;
  WaitGraph graph_;
  std::vector<BatchSpan> spans_;  ///< By batch.
};

/// The graph of all ranks, messages and joint ops. Adds the diagnostics of single ranks.
WaitGraph wait_graph(const World& world, const std::vector<MatchedMessage>& messages,
                     const std::vector<JointAction>& joints, Diagnostics& diagnostics) {
  // The graphs of the ranks.
  std::vector<std::unique_ptr<RankWaits>> ranks(world.ranks.size());
  parallel_for_ranks(static_cast<int>(world.ranks.size()), [&](Rank rank) {
    ranks[rank] = std::make_unique<RankWaits>(world.ranks[rank], diagnostics.limit());
  });
  // One graph with room for all of them and for the messages.
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
    diagnostics.add(waits->diagnostics());
  }
  const auto span_of = [&](Rank rank, int op) {
    const BatchSpan& span = ranks[rank]->span(op);
    return BatchSpan{first_nodes[rank] + span.start, first_nodes[rank] + span.end};
  };
  // Messages between the same two batches are one node; in the list they follow each other.
  const int count = static_cast<int>(messages.size());
  for (int first = 0, end = 0; first < count; first = end) {
    const BatchSpan send = span_of(messages[first].from, messages[first].send);
    const BatchSpan recv = span_of(messages[first].to, messages[first].recv);
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
  for (std::size_t j = 0; j < joints.size(); ++j) {
    const JointAction& joint = joints[j];
    const int node = graph.add({.rank = joint.group.front(),
                                .op = joint.ops.front(),
                                .first_message = static_cast<int>(j),
                                .joint = true});
    for (std::size_t i = 0; i < joint.ops.size(); ++i) {
      const BatchSpan part = span_of(joint.group[i], joint.ops[i]);
      graph.edge(part.start, node);
      graph.edge(node, part.end);
    }
  }
  return graph;
}

/// The nodes of a cycle, each waiting for the next. Requires that some node is stuck.
std::vector<const WaitGraph::WaitNode*> find_cycle(const WaitGraph& graph) {
  // For each stuck node, one stuck node that it waits for. There always is one.
  std::vector<int> waits_for(graph.nodes().size(), -1);
  int at = -1;
  for (const WaitGraph::Edge& edge : graph.edges()) {
    if (!graph.stuck(edge.before)) continue;
    waits_for[edge.after] = edge.before;
    at = edge.before;
  }
  // Following these must come back to a node that was seen: it is on a cycle, which is walked
  // again.
  std::vector<bool> marks(graph.nodes().size());
  for (; !marks[at]; at = waits_for[at]) marks[at] = true;
  std::vector<const WaitGraph::WaitNode*> cycle;
  for (; marks[at]; at = waits_for[at]) {
    marks[at] = false;
    cycle.push_back(&graph.nodes()[at]);
  }
  return cycle;
}

/// Adds one diagnostic for every compute op and batch of a cycle, from the lowest rank and op on.
void add_cycle(const WaitGraph& graph, const World& world, Diagnostics& diagnostics) {
  using WaitNode = WaitGraph::WaitNode;
  std::vector<const WaitNode*> cycle = find_cycle(graph);
  const auto op_of = [&](const WaitNode* node) -> const Op& {
    return world.ranks[node->rank].ops[node->op];
  };
  const auto same = [&](const WaitNode* a, const WaitNode* b) {
    if (a->rank != b->rank || op_of(a).is_comm() != op_of(b).is_comm()) return false;
    return op_of(a).is_comm() ? op_of(a).lane == op_of(b).lane && op_of(a).step == op_of(b).step
                              : a->op == b->op;
  };
  // Begin with the lowest rank and op, and name neighbours of the same batch once.
  const auto first =
      std::min_element(cycle.begin(), cycle.end(), [](const WaitNode* a, const WaitNode* b) {
        return std::pair(a->rank, a->op) < std::pair(b->rank, b->op);
      });
  std::rotate(cycle.begin(), first, cycle.end());
  cycle.erase(std::unique(cycle.begin(), cycle.end(), same), cycle.end());
  if (cycle.size() > 1 && same(cycle.back(), cycle.front())) cycle.pop_back();
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const WaitNode& other = *cycle[(i + 1) % cycle.size()];
    const Op& op = op_of(cycle[i]);
    diagnostics.add(cycle[i]->rank, cycle[i]->op, "order", "deadlock: {}{} waits for rank {} op {}",
                    (*world.ranks[cycle[i]->rank].words)[op.kind].name,
                    op.is_comm() ? fmt::format(" (lane {}, step {})", op.lane, op.step) : "",
                    other.rank, other.op);
  }
}

}  // namespace

std::vector<Action> order_actions(const World& world, const std::vector<MatchedMessage>& messages,
                                  Diagnostics& diagnostics,
                                  const std::vector<JointAction>& joints) {
  WaitGraph graph = wait_graph(world, messages, joints, diagnostics);
  if (!diagnostics.empty()) return {};
  const std::vector<int> order = graph.sort();
  if (order.size() < graph.nodes().size()) {
    add_cycle(graph, world, diagnostics);
    return {};
  }
  // Starts and ends of batches are no actions.
  std::vector<Action> actions;
  actions.reserve(order.size() + messages.size());
  for (const int n : order) {
    const WaitGraph::WaitNode& node = graph.nodes()[n];
    for (int m = 0; m < node.messages; ++m) {
      const MatchedMessage& ends = messages[node.first_message + m];
      actions.push_back({.rank = ends.to,
                         .op = ends.recv,
                         .from = ends.from,
                         .send = ends.send,
                         .wave = graph.wave(n)});
    }
    if (node.joint) {
      const JointAction& joint = joints[node.first_message];
      for (std::size_t i = 0; i < joint.ops.size(); ++i) {
        actions.push_back({.rank = joint.group[i],
                           .op = joint.ops[i],
                           .wave = graph.wave(n),
                           .joint = node.first_message});
      }
    }
    if (node.runs) actions.push_back({.rank = node.rank, .op = node.op, .wave = graph.wave(n)});
  }
  return actions;
}

}  // namespace armillary::plan
