// doctor_test.cpp: `armillary doctor` as a user sees it: its table, its JSON, sets that are forced
// by the environment, and flags that do not exist.
#include <nlohmann/json.hpp>

#include "tests/error/program.h"

namespace armillary::error {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using Json = nlohmann::json;

class Doctor : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_torch()) GTEST_SKIP() << "[SKIP] the program was built without libtorch";
    before_ = std::getenv("ARMILLARY_ISA") == nullptr ? "" : std::getenv("ARMILLARY_ISA");
    unsetenv("ARMILLARY_ISA");
  }
  void TearDown() override {
    unsetenv("ARMILLARY_ISA");
    if (!before_.empty()) setenv("ARMILLARY_ISA", before_.c_str(), 1);
  }
  static void force(const std::string& isa) { setenv("ARMILLARY_ISA", isa.c_str(), 1); }

  static Json diagnosis() {
    const ProgramRun result = run({"doctor", "--quick", "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out);
  }
  static Json set_of(const Json& diagnosis, const std::string& name) {
    for (const Json& set : diagnosis["sets"]) {
      if (set["name"] == name) return set;
    }
    return Json::object();
  }

 private:
  std::string before_;
};

TEST_F(Doctor, SaysWhatIsTakenForEachDtype) {
  const ProgramRun result = run({"doctor", "--quick"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, StartsWith("set               fp32      bf16      fp16  GFLOP/s"));
  for (const std::string part : {"\nportable ", "\nfp32 takes ", "\nbf16 takes ", "\nfp16 takes ",
                                 ": the best set that runs here"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST_F(Doctor, JsonHasEverySetAndReason) {
  const Json all = diagnosis();
  for (const std::string dtype : {"fp32", "bf16", "fp16"}) {
    int taken = 0;
    for (const Json& set : all["sets"]) {
      EXPECT_NE(set[dtype]["why"], "") << set.dump();
      EXPECT_EQ(set.contains("missing"), !set["runs"].get<bool>()) << set.dump();
      if (!set[dtype]["taken"].get<bool>()) continue;
      ++taken;
      EXPECT_EQ(all["taken"][dtype], set["name"]);
      EXPECT_TRUE(set["runs"].get<bool>());
      EXPECT_GT(set[dtype]["peak_gflops"].get<double>(), 0);
    }
    EXPECT_EQ(taken, 1) << dtype;
  }
}

TEST_F(Doctor, KnowsTheMachineItsNetworksAndVersions) {
  const Json all = diagnosis();
  for (const std::string key : {"armillary", "torch", "compiler"}) {
    EXPECT_NE(all["versions"][key], "") << key;
  }
  EXPECT_GE(all["machine"]["cores"], 1);
  for (const std::string key : {"memory_bytes", "shared_memory_bytes", "clock_look_ns"}) {
    EXPECT_GT(all["machine"][key], 0) << key;
  }
  EXPECT_FALSE(all["networks"]["all"].empty());
  EXPECT_TRUE(all["networks"]["mpi"].contains("takes"));
  setenv("GLOO_SOCKET_IFNAME", "eth77", 1);
  const Json report = diagnosis();
  unsetenv("GLOO_SOCKET_IFNAME");
  EXPECT_THAT(report["networks"]["c10d"]["problem"].get<std::string>(),
              StartsWith("there is no interface eth77; "));
  const ProgramRun text = run({"doctor", "--quick"});
  for (const std::string line : {"\nversions      armillary ", "\nmachine ", "\nmemory ",
                                 "\nshared memory ", "\nclock ", "\nmpi takes ", "\nc10d takes "}) {
    EXPECT_THAT(text.out, HasSubstr(line));
  }
}

TEST_F(Doctor, TestsEveryEngineThatIsThere) {
  const ProgramRun result = run({"doctor", "--json"});
  EXPECT_EQ(result.code, 0) << result.err << result.out;
  int works = 0;
  const Json all = Json::parse(result.out);
  for (const Json& engine : all["engines"]) {
    EXPECT_EQ(engine["there"], !engine.contains("missing")) << engine;
    if (!engine["tested"].get<bool>()) continue;
    EXPECT_EQ(engine["works"], true) << engine;
    EXPECT_LT(engine.value("max_error", 1.0), 1e-5) << engine;
    ++works;
  }
  EXPECT_GE(works, 2) << "threads and c10d are in every build";
}

TEST_F(Doctor, NeverTakesPairsThatAreSlower) {
  const Json pairs = set_of(diagnosis(), "avx512_bf16");
  if (!pairs.value("runs", false)) GTEST_SKIP() << "[SKIP] this CPU has no avx512_bf16";
  const bool slower = pairs["bf16"]["peak_gflops"] < pairs["fp32"]["peak_gflops"];
  EXPECT_FALSE(slower && pairs["bf16"]["taken"].get<bool>()) << pairs.dump();
}

TEST_F(Doctor, AForcedSetIsThatOfAllDtypes) {
  force("portable");
  const Json all = diagnosis();
  const Json expected{{"fp32", "portable"}, {"bf16", "portable"}, {"fp16", "portable"}};
  EXPECT_EQ(all["taken"], expected);
  EXPECT_EQ(set_of(all, "portable")["bf16"]["why"],
            "ARMILLARY_ISA names it; bf16 is multiplied as fp32");
}

using DoctorError = Doctor;

TEST_F(DoctorError, ForcedSetsThatThereAreNot) {
  force("sse9");
  expect_error({"doctor"},
               AllOf(StartsWith("ARMILLARY_ISA: sse9; "), HasSubstr("portable is required")));
  expect_error({"bench", "kernel", "--tokens", "8"}, StartsWith("ARMILLARY_ISA: sse9; "));
  force("avx3");
  expect_error({"doctor"}, HasSubstr("is required; nearest: "));
}

TEST_F(DoctorError, ForcedSetsThatDoNotRunHere) {
  const Json all = diagnosis();
  for (const std::string name : {"amx", "avx512_bf16", "avx512", "avx2"}) {
    if (set_of(all, name).value("runs", false)) continue;
    force(name);
    expect_error({"doctor"},
                 AllOf(StartsWith("ARMILLARY_ISA: " + name), HasSubstr("portable is required")));
  }
}

TEST_F(DoctorError, FlagsThatThereAreNot) {
  expect_error({"doctor", "--jsn"}, HasSubstr("nearest: --json"));
}

}  // namespace
}  // namespace armillary::error
