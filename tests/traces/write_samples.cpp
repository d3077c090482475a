// Writes random traces and event files, and next to them, as JSON, what a reader must find in them.
//   traces_write_samples DIRECTORY SEED
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "traces/perfetto_writer.h"
#include "traces/tensorboard_writer.h"
#include "traces/timeline.h"

namespace {

using namespace trellis;
using namespace trellis::traces;
using nlohmann::json;

class Sampler {
 public:
  explicit Sampler(unsigned seed) : random_(seed), timeline_(3000) {}

  void write(const std::string& directory) {
    make_tracks();
    for (int i = 0; i < 2500; ++i) add_event();
    for (int i = 0; i < 200; ++i) add_flow();
    for (int i = 0; i < 500; ++i)
      add_event();  // beyond the timeline's limit: some of them are dropped
    expected_["dropped"] = timeline_.dropped();
    std::ofstream trace(directory + "/trace.perfetto", std::ios::binary);
    write_perfetto(timeline_, trace);
    write_scalars(directory + "/events.out.tfevents.sample");
    std::ofstream(directory + "/expected.json") << expected_.dump();
  }

 private:
  std::int64_t below(std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_);
  }

  void make_tracks() {
    for (int p = 0; p < 3; ++p) {
      const std::string process_name = "rank " + std::to_string(p);
      const ProcessId process = timeline_.add_process(process_name, 10 - p);
      expected_["processes"].push_back({{"name", process_name}, {"sort", 10 - p}});
      for (int t = 0; t < 4; ++t) {
        const std::string name = t < 2 ? "same name" : "track " + std::to_string(t);
        tracks_.push_back(timeline_.add_track(process, name, 5 - t));
        expected_["tracks"].push_back({{"process", process_name}, {"name", name}, {"sort", 5 - t}});
      }
      const std::string unit = p == 0 ? "bytes" : "items";
      counters_.push_back(timeline_.add_counter(process, "counter", unit));
      expected_["counters"].push_back({{"process", process_name}, {"unit", unit}});
    }
  }

  /// Expects what the timeline admitted.
  template <typename Add>
  void expect(const char* kind, json what, Add add) {
    const std::size_t dropped = timeline_.dropped();
    add();
    if (timeline_.dropped() == dropped) expected_[kind].push_back(std::move(what));
  }

  /// Mostly slices.
  void add_event() {
    const std::size_t track =
        static_cast<std::size_t>(below(static_cast<std::int64_t>(tracks_.size())));
    const Picoseconds at(below(50'000'000));
    const std::string name = "name " + std::to_string(below(40));
    const std::string category = below(3) == 0 ? "" : "category " + std::to_string(below(3));
    if (below(10) == 0) return add_sample(at);
    json args = json::object();
    const std::vector<Arg> stored = make_args(args);
    if (below(10) == 0) {
      expect("instants",
             {{"track", track},
              {"name", name},
              {"category", category},
              {"at", at.value},
              {"args", args}},
             [&] { timeline_.instant(tracks_[track], name, category, at, stored); });
      return;
    }
    const Picoseconds duration(below(4) == 0 ? below(3000) : below(600'000));
    expect("slices",
           {{"track", track},
            {"name", name},
            {"category", category},
            {"start", at.value},
            {"duration", duration.value},
            {"args", args},
            {"flows_out", json::array()},
            {"flows_in", json::array()}},
           [&] { timeline_.slice(tracks_[track], name, category, at, duration, stored); });
  }

  std::vector<Arg> make_args(json& expected) {
    std::vector<Arg> args;
    texts_.clear();
    texts_.push_back("text " + std::to_string(below(20)));
    if (below(2) == 0) {
      const std::int64_t value = below(2) == 0 ? -below(1'000'000'000'000'000) : below(100);
      args.push_back({"integer", value});
      expected["integer"] = value;
    }
    if (below(3) == 0) {
      const double value = static_cast<double>(below(1000)) / 7;
      args.push_back({"number", value});
      expected["number"] = value;
    }
    if (below(3) == 0) {
      args.push_back({"text", std::string_view(texts_.back())});
      expected["text"] = texts_.back();
    }
    return args;
  }

  void add_sample(Picoseconds at) {
    const std::size_t counter =
        static_cast<std::size_t>(below(static_cast<std::int64_t>(counters_.size())));
    const std::int64_t value = below(1'000'000'000'000) - 500'000'000'000;
    expect("samples", {{"counter", counter}, {"at", at.value}, {"value", value}},
           [&] { timeline_.counter(counters_[counter], at, value); });
  }

  void add_flow() {
    const std::uint64_t from =
        static_cast<std::uint64_t>(below(static_cast<std::int64_t>(timeline_.num_slices())));
    const std::uint64_t to =
        static_cast<std::uint64_t>(below(static_cast<std::int64_t>(timeline_.num_slices())));
    expected_["slices"][from]["flows_out"].push_back(timeline_.flows().size());
    expected_["slices"][to]["flows_in"].push_back(timeline_.flows().size());
    timeline_.flow(from, to);
  }

  void write_scalars(const std::string& path) {
    TensorBoardWriter writer(path, 1.5);
    for (std::int64_t step = 0; step < 200; ++step) {
      for (const char* tag : {"train/loss", "lr", "grad_norm"}) {
        const double value = static_cast<double>(below(1'000'000)) / 997 - 300;
        writer.scalar(tag, step, value, 1000.25 + static_cast<double>(step));
        expected_["scalars"].push_back({{"tag", tag},
                                        {"step", step},
                                        {"value", value},
                                        {"wall_time", 1000.25 + static_cast<double>(step)}});
      }
    }
  }

  std::mt19937 random_;
  Timeline timeline_;
  json expected_;
  std::vector<TrackId> tracks_;
  std::vector<CounterId> counters_;
  std::vector<std::string> texts_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Sampler(static_cast<unsigned>(std::stoul(argv[2]))).write(argv[1]);
}
