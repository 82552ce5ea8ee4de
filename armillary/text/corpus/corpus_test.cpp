// corpus_test.cpp: every token of every document comes back from the shards, packed either way; the
// order of epochs; requests, files and indexes that are refused.
#include "armillary/text/corpus/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "armillary/core/error.h"
#include "armillary/text/corpus/keyed_permutation.h"
#include "armillary/text/corpus/prepare.h"
#include "armillary/text/corpus/shard.h"
#include "armillary/text/tokenizer/huggingface.h"
#include "armillary/text/tokenizer/testing/small_tokenizers.h"
#include "tests/seed.h"

namespace armillary::corpus {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;
using tokenizer::TokenId;
using Tokens = std::vector<TokenId>;

constexpr TokenId kEnd = 260;  // <|end|>

TEST(KeyedPermutation, IsAPermutationForEverySize) {
  for (const std::uint64_t n : {1, 2, 3, 4, 5, 16, 17, 64, 65, 1000, 4097}) {
    std::set<std::uint64_t> all;
    const KeyedPermutation order(n, 7);
    for (std::uint64_t i = 0; i < n; ++i) all.insert(order.at(i));
    EXPECT_EQ(all.size(), n);
    EXPECT_LT(*all.rbegin(), n);
  }
}

TEST(KeyedPermutation, IsTheSameOnEveryPlatformAndDiffersByKey) {
  std::vector<std::uint64_t> order;
  std::vector<std::uint64_t> other;
  for (std::uint64_t i = 0; i < 1000; ++i) {
    order.push_back(KeyedPermutation(1000, mixed_key({1, 2})).at(i));
    other.push_back(KeyedPermutation(1000, mixed_key({2, 1})).at(i));
  }
  EXPECT_NE(order, other);
  // Neighbours and places are unrelated: about one of 1,000 stays where it is.
  int fixed = 0;
  for (std::uint64_t i = 0; i < 1000; ++i) fixed += order[i] == i ? 1 : 0;
  EXPECT_LT(fixed, 10);
}

/// Random documents whose tokens tell where they are from.
std::vector<Tokens> random_documents(unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Tokens> documents;
  for (int i = 0; i < 200; ++i) {
    documents.emplace_back(random() % 40);
    for (TokenId& token : documents.back()) token = static_cast<TokenId>(random() % 250);
  }
  return documents;
}

/// A mapped sequence, in memory.
PackedSequence copy_of(const MappedSequence& mapped) {
  PackedSequence sequence{.pieces = mapped.pieces, .has_padding = mapped.has_padding};
  const std::int64_t length =
      std::accumulate(mapped.pieces.begin(), mapped.pieces.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < length; ++i) sequence.tokens.push_back(mapped.token(i));
  sequence.next = mapped.token(length);
  return sequence;
}

Tokens tokens_of(const MappedSequence& mapped) {
  return copy_of(mapped).tokens;
}

/// The documents that sequences hold, put together again by what follows each piece.
std::multiset<Tokens> whole_documents(const std::vector<PackedSequence>& sequences) {
  std::multiset<Tokens> whole;
  Tokens part;
  for (const PackedSequence& sequence : sequences) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < sequence.pieces.size(); ++i) {
      const auto end = at + static_cast<std::size_t>(sequence.pieces[i]);
      part.insert(part.end(), sequence.tokens.begin() + static_cast<std::ptrdiff_t>(at),
                  sequence.tokens.begin() + static_cast<std::ptrdiff_t>(end));
      at = end;
      const bool is_last = i + 1 == sequence.pieces.size();
      if (is_last && sequence.next != kNothingFollows) continue;
      if (!(is_last && sequence.has_padding)) whole.insert(part);
      part.clear();
    }
    EXPECT_EQ(at, sequence.tokens.size());
  }
  return whole;
}

/// Tokens of documents, sorted.
Tokens tokens_of(const std::multiset<Tokens>& documents) {
  Tokens all;
  for (const Tokens& document : documents) all.insert(all.end(), document.begin(), document.end());
  std::ranges::sort(all);
  return all;
}

/// Tokens of sequences without padding, sorted.
Tokens tokens_of(const std::vector<PackedSequence>& sequences) {
  Tokens all;
  for (const PackedSequence& sequence : sequences) {
    const std::int64_t padding = sequence.has_padding ? sequence.pieces.back() : 0;
    all.insert(all.end(), sequence.tokens.begin(), sequence.tokens.end() - padding);
  }
  std::ranges::sort(all);
  return all;
}

TEST(Packer, KeepsEveryTokenAndCountsWhatItDrops) {
  for (const PackingKind kind : {PackingKind::Cut, PackingKind::BestFit}) {
    for (const std::int64_t seq_len : {1, 2, 7, 40, 100}) {
      std::vector<PackedSequence> sequences;
      Packer packer({.seq_len = seq_len, .kind = kind, .separator = kEnd, .window_tokens = 900},
                    [&](const PackedSequence& s) { sequences.push_back(s); });
      std::multiset<Tokens> documents;
      for (Tokens& document : random_documents(5)) {
        packer.add(document);
        if (document.empty()) continue;
        document.push_back(kEnd);
        documents.insert(document);
      }
      packer.finish();
      const PackerCounts& counts = packer.counts();
      EXPECT_EQ(counts.sequences, static_cast<std::int64_t>(sequences.size()));
      EXPECT_EQ(counts.documents, static_cast<std::int64_t>(documents.size()));
      EXPECT_EQ(counts.documents + counts.empty, 200);
      EXPECT_EQ(counts.tokens + counts.padding, counts.sequences * seq_len + counts.dropped);
      if (kind == PackingKind::BestFit) {
        EXPECT_EQ(counts.dropped, 0);
        EXPECT_EQ(tokens_of(sequences), tokens_of(documents)) << "seq_len " << seq_len;
        if (seq_len < 40) continue;  // The rest of a document that is cut lies elsewhere.
        EXPECT_EQ(whole_documents(sequences), documents) << "seq_len " << seq_len;
        EXPECT_EQ(counts.cuts, 0);
      } else {
        EXPECT_LE(counts.dropped, seq_len);
        EXPECT_EQ(counts.padding, 0);
        const auto whole = whole_documents(sequences);
        EXPECT_TRUE(std::ranges::includes(documents, whole)) << "seq_len " << seq_len;
      }
    }
  }
}

/// A folder of files, and a corpus made of it.
class CorpusFiles : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "books");
    for (int i = 0; i < 40; ++i) {
      std::ofstream(root_ / "books" / (std::to_string(i) + ".txt"))
          << "book " << i << std::string(static_cast<std::size_t>(i % 9), 'x');
    }
    std::ofstream lines(root_ / "lines.jsonl");
    for (int i = 0; i < 60; ++i) lines << R"({"id": 1, "text": "line )" << i << "\"}\n\n";
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  PrepareRequest request(const std::string& name) const {
    return {.folder = (root_ / name).string(),
            .sources = {{"books", (root_ / "books").string(), 1},
                        {"lines", (root_ / "lines.jsonl").string(), 1.5}},
            .documents = {},
            .seq_len = 24,
            .separator = "<|end|>",
            .shard_sequences = 5};
  }
  static tokenizer::Tokenizer bytes() {
    return tokenizer::Tokenizer(
        tokenizer::read_huggingface(tokenizer::byte_level_json(), "", "bytes.json"));
  }
  static std::string contents(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::filesystem::path root_ = std::filesystem::temp_directory_path() /
                                (std::string("armillary_corpus_test_") +
                                 testing::UnitTest::GetInstance()->current_test_info()->name());
};

TEST_F(CorpusFiles, EveryDocumentComesBack) {
  for (const bool cuts : {false, true}) {
    PrepareRequest asks = request(cuts ? "cut" : "fit");
    asks.packing = cuts ? PackingKind::Cut : PackingKind::BestFit;
    const CorpusIndex index = prepare(asks, bytes());
    const Corpus corpus(asks.folder, CorpusPart::Train);
    corpus.verify();
    EXPECT_EQ(to_text(corpus.index()), to_text(index));
    EXPECT_EQ(index.sources[0].files.size(), 40U);
    EXPECT_EQ(index.sources[1].train.documents, 60);
    if (cuts) continue;
    // Weight 1: an epoch reads every sequence of the books once.
    std::multiset<Tokens> expected;
    const tokenizer::Tokenizer of = bytes();
    for (int i = 0; i < 40; ++i) {
      expected.insert(of.encode("book " + std::to_string(i) +
                                std::string(static_cast<std::size_t>(i % 9), 'x') + "<|end|>"));
    }
    std::vector<PackedSequence> books;
    for (std::int64_t i = 0; i < corpus.sequences_per_epoch(); ++i) {
      const PackedSequence sequence = copy_of(corpus.at(i, 3));
      if (sequence.tokens[0] == 'b') books.push_back(sequence);
    }
    EXPECT_EQ(whole_documents(books), expected);
  }
}

TEST_F(CorpusFiles, OrderIsOfSeedAndEpochAndReadsEvenly) {
  const PrepareRequest asks = request("order");
  const CorpusIndex index = prepare(asks, bytes());
  const Corpus corpus(asks.folder, CorpusPart::Train);
  const std::int64_t n = index.sources[1].sequences(CorpusPart::Train);
  EXPECT_EQ(corpus.sequences_per_epoch(),
            index.sources[0].sequences(CorpusPart::Train) + n * 3 / 2);
  std::map<Tokens, int> counts;
  std::vector<std::vector<Tokens>> epochs(2);
  for (std::int64_t i = 0; i < 2 * corpus.sequences_per_epoch(); ++i) {
    const Tokens tokens = tokens_of(corpus.at(i, 9));
    EXPECT_EQ(tokens, tokens_of(corpus.at(i, 9)));
    epochs[static_cast<std::size_t>(i / corpus.sequences_per_epoch())].push_back(tokens);
    if (tokens[0] == 'l') ++counts[tokens];
  }
  EXPECT_NE(epochs[0], epochs[1]);
  // Two epochs of weight 1.5: each sequence three times, or twice if 1.5 n was rounded down.
  for (const auto& [tokens, count] : counts) EXPECT_NEAR(count, 3, 1);
  EXPECT_EQ(static_cast<std::int64_t>(counts.size()), n);
  EXPECT_NE(tokens_of(corpus.at(0, 9)), tokens_of(corpus.at(0, 10)));
}

TEST_F(CorpusFiles, ValidationIsAShareOfTheDocuments) {
  PrepareRequest asks = request("validation");
  asks.validation = 0.3;
  const CorpusIndex index = prepare(asks, bytes());
  const PackerCounts& held_out = index.sources[1].validation;
  EXPECT_EQ(held_out.documents + index.sources[1].train.documents, 60);
  EXPECT_GT(held_out.documents, 5);
  EXPECT_LT(held_out.documents, 35);
  const Corpus corpus(asks.folder, CorpusPart::Validation);
  EXPECT_EQ(tokens_of(corpus.at(0, 1)), tokens_of(corpus.at(corpus.sequences_per_epoch(), 2)));
  EXPECT_THAT(describe(index), HasSubstr("  validation"));
  prepare(request("none"), bytes());
  EXPECT_THAT([&] { Corpus((root_ / "none").string(), CorpusPart::Validation); },
              ThrowsMessage<InvalidArgument>(HasSubstr("has no sequence for validation")));
}

TEST_F(CorpusFiles, IdentityNamesWhatDecides) {
  const auto lines = [&](const std::string& name,
                         const std::function<void(PrepareRequest&)>& change) {
    PrepareRequest asks = request(name);
    change(asks);
    return identity_of(prepare(asks, bytes()));
  };
  const auto first_difference = [](const std::vector<std::string>& a,
                                   const std::vector<std::string>& b) {
    return *std::mismatch(a.begin(), a.end(), b.begin(), b.end()).second;
  };
  const auto before = lines("a", [](PrepareRequest&) {});
  EXPECT_EQ(lines("b", [](PrepareRequest&) {}), before);
  const auto cut = lines("c", [](PrepareRequest& asks) { asks.packing = PackingKind::Cut; });
  EXPECT_EQ(first_difference(before, cut), "packing = cut");
  std::ofstream(root_ / "books" / "3.txt") << "another";
  const auto changed = lines("d", [](PrepareRequest&) {});
  EXPECT_THAT(first_difference(before, changed), HasSubstr("3.txt = 7 bytes"));
}

TEST_F(CorpusFiles, RefusesRequests) {
  const auto refuses = [&](const std::function<void(PrepareRequest&)>& change,
                           const std::string& part) {
    PrepareRequest asks = request("refused");
    change(asks);
    EXPECT_THAT([&] { prepare(asks, bytes()); }, ThrowsMessage<Error>(HasSubstr(part)));
  };
  refuses([](PrepareRequest& asks) { asks.sources.clear(); }, "no source given");
  refuses([](PrepareRequest& asks) { asks.sources[1].name = "books"; }, "called 'books'");
  refuses([](PrepareRequest& asks) { asks.sources[0].weight = 0; }, "weight 0");
  refuses([](PrepareRequest& asks) { asks.seq_len = 0; }, "sequences of 0 tokens");
  refuses([](PrepareRequest& asks) { asks.validation = 1; }, "validation 1");
  refuses([](PrepareRequest& asks) { asks.separator = "<none>"; }, "'<none>' is no token");
  refuses([](PrepareRequest& asks) { asks.separator.clear(); }, "no end token is named");
  refuses([](PrepareRequest& asks) { asks.documents.field = "words"; }, "line 1 of");
  refuses([](PrepareRequest& asks) { asks.sources[0].path += "/none"; }, "does not exist");
  std::ofstream(root_ / "books" / "0.txt") << "\xFF";
  refuses([](PrepareRequest&) {}, "is not UTF-8 at byte 0");
  std::ofstream(root_ / "books" / "0.txt") << "good again";
  for (const auto& [line, part] : {std::pair("{", "is no JSON"), std::pair("[1]", "has no text"),
                                   std::pair("{\"text\": 1}", "has no text")}) {
    std::ofstream(root_ / "lines.jsonl") << "{\"text\": \"a\"}\n" << line;
    refuses([](PrepareRequest&) {}, std::string("line 2 of"));
    refuses([](PrepareRequest&) {}, part);
  }
}

/// Lines that were changed at random are read, or refused in one line.
TEST_F(CorpusFiles, ChangedLinesAreReadOrRefused) {
  std::mt19937 random(test_seed());
  const std::string good = "{\"id\": [1, {}], \"text\": \"a \\u00e9 \\\" b\"}\n";
  const std::string path = (root_ / "fuzz.jsonl").string();
  for (int trial = test_all() ? 200000 : 1000; trial > 0; --trial) {
    std::string text = good + good;
    for (int i = 0; i < 3; ++i) {
      const std::size_t at = random() % text.size();
      if (random() % 2 == 0) text.erase(at, random() % 4);
      text.insert(std::min(at, text.size()), 1, "{}[]\":,\\\n0\xFF"[random() % 11]);
    }
    std::ofstream(path, std::ios::binary) << text;
    try {
      read_documents(path, {}, [](std::string_view) {});
    } catch (const IoError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    }
  }
}

/// A program in the place of a Python that has pyarrow.
TEST_F(CorpusFiles, ParquetIsReadThroughPython) {
  const std::string python = (root_ / "python").string();
  const auto be_python = [&](const std::string& script) {
    std::ofstream(python) << "#!/bin/sh\n" << script;
    std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  };
  std::ofstream(root_ / "rows.parquet") << "PAR1";
  setenv("ARMILLARY_PYTHON", python.c_str(), 1);
  std::vector<std::string> documents;
  const auto read = [&] {
    documents.clear();
    return read_documents((root_ / "rows.parquet").string(), {},
                          [&](std::string_view document) { documents.emplace_back(document); });
  };
  be_python("test $# = 4 || exit 9\necho '{\"text\": \"one\"}'\necho '{\"text\": \"two\"}'\n");
  EXPECT_EQ(read().bytes, 4);
  EXPECT_THAT(documents, testing::ElementsAre("one", "two"));
  be_python("echo before >&2\necho 'ModuleNotFoundError: pyarrow' >&2\nexit 1\n");
  EXPECT_THAT([&] { read(); }, ThrowsMessage<IoError>(HasSubstr("(ModuleNotFoundError: pyarrow)")));
  be_python("while true; do echo '{}'; done\n");  // It is ended when a line is refused.
  EXPECT_THAT([&] { read(); }, ThrowsMessage<IoError>(HasSubstr("has no text under 'text'")));
  std::filesystem::remove(python);
  EXPECT_THAT([&] { read(); }, ThrowsMessage<Error>(HasSubstr("cannot be started")));
  unsetenv("ARMILLARY_PYTHON");
}

TEST_F(CorpusFiles, RefusesWhatWasChanged) {
  const PrepareRequest asks = request("changed");
  prepare(asks, bytes());
  EXPECT_THAT([&] { prepare(asks, bytes()); }, ThrowsMessage<IoError>(HasSubstr("already")));
  const std::string shard = asks.folder + "/train-000-00000.tokens";
  const std::string whole = contents(shard);
  std::string damaged = whole;
  damaged[3] ^= 1;
  std::ofstream(shard, std::ios::binary) << damaged;
  EXPECT_THAT([&] { Corpus(asks.folder, CorpusPart::Train).verify(); },
              ThrowsMessage<IoError>(HasSubstr("train-000-00000.tokens' has hash")));
  std::ofstream(shard, std::ios::binary) << whole.substr(1);
  EXPECT_THAT([&] { Corpus(asks.folder, CorpusPart::Train); },
              ThrowsMessage<IoError>(HasSubstr("those of the index")));
  // Random damage of a shard is told, or gives another sequence: it is never a crash.
  std::mt19937 random(test_seed());
  for (int trial = test_all() ? 30000 : 300; trial > 0; --trial) {
    std::string bad = whole;
    for (int i = 0; i < 3; ++i) bad[random() % bad.size()] = static_cast<char>(random());
    std::ofstream(shard, std::ios::binary) << bad;
    try {
      const Corpus corpus(asks.folder, CorpusPart::Train);
      for (std::int64_t i = 0; i < corpus.sequences_per_epoch(); ++i) copy_of(corpus.at(i, 1));
    } catch (const IoError& error) {
      EXPECT_THAT(error.what(), HasSubstr("pieces that do not fill it"));
    }
  }
  // Every changed byte of the index is told.
  const std::string index = contents(asks.folder + "/" + kIndexName);
  for (std::size_t i = 0; i < index.size(); i += 7) {
    std::string bad = index;
    bad[i] ^= 4;
    EXPECT_THROW(parse_index("corpus.json", bad), IoError) << i;
    EXPECT_THROW(parse_index("corpus.json", index.substr(0, i)), IoError) << i;
  }
}

/// Sizes of an index are compared with a file before anything is read.
TEST(Shard, BytesThatCannotBeCountedAreRefused) {
  constexpr std::int64_t kMany = std::int64_t{1} << 31;
  const ShardShape large{
      .seq_len = kMany - 2, .sequences = kMany, .pieces = kMany, .token_bytes = 2};
  EXPECT_THROW(large.bytes(), InvalidArgument);
  // 3 sequences of 4 tokens of 2 bytes, padded to 4; 4 firsts and 5 pieces.
  const ShardShape small{.seq_len = 3, .sequences = 3, .pieces = 5, .token_bytes = 2};
  EXPECT_EQ(small.bytes(), 3 * 4 * 2 + 4 * (4 + 5));
}

}  // namespace
}  // namespace armillary::corpus
