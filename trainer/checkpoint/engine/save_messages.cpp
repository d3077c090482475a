#include "trainer/checkpoint/engine/save_messages.h"

#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

namespace trellis::checkpoint::native {
namespace {

using nlohmann::json;

json json_of(const ShardedTensor& shard) {
  return {shard.key,          name(shard.dtype),      shard.local_shape,
          shard.global_shape, shard.global_offset,    shard.axis_fragmentations,
          shard.replica_id,   shard.prepend_axis_num, shard.allow_shape_mismatch};
}

ShardedTensor shard_of(const json& row) {
  ShardedTensor shard;
  row.at(0).get_to(shard.key);
  shard.dtype = dtype_named(row.at(1).get<std::string>()).value();
  row.at(2).get_to(shard.local_shape);
  row.at(3).get_to(shard.global_shape);
  row.at(4).get_to(shard.global_offset);
  row.at(5).get_to(shard.axis_fragmentations);
  row.at(6).get_to(shard.replica_id);
  row.at(7).get_to(shard.prepend_axis_num);
  row.at(8).get_to(shard.allow_shape_mismatch);
  return shard;
}

json json_of(const WrittenChunk& chunk) {
  const DcpPlace& place = chunk.box.place;
  return {chunk.key,  name(chunk.meta.dtype), chunk.meta.shape, chunk.box.offsets, chunk.box.sizes,
          place.file, place.offset,           place.length};
}

WrittenChunk chunk_of(const json& row) {
  WrittenChunk chunk;
  row.at(0).get_to(chunk.key);
  chunk.meta.dtype = dtype_named(row.at(1).get<std::string>()).value();
  row.at(2).get_to(chunk.meta.shape);
  row.at(3).get_to(chunk.box.offsets);
  row.at(4).get_to(chunk.box.sizes);
  row.at(5).get_to(chunk.box.place.file);
  row.at(6).get_to(chunk.box.place.offset);
  row.at(7).get_to(chunk.box.place.length);
  return chunk;
}

}  // namespace

std::string SaveOffer::to_text() const {
  json document = {{"files", json::array()}, {"shards", json::array()}};
  for (const auto& [path, file] : files)
    document["files"].push_back({file.id, file.bytes, file.holders, file.across_groups});
  for (const ShardedTensor& shard : shards) document["shards"].push_back(json_of(shard));
  return document.dump();
}

SaveOffer SaveOffer::from_text(const std::string& text) {
  const json document = json::parse(text);
  SaveOffer offer;
  for (const json& row : document.at("files")) {
    Transfer file{row.at(0), row.at(1), row.at(2), row.at(3)};
    offer.files[file.id] = std::move(file);
  }
  for (const json& row : document.at("shards")) offer.shards.push_back(shard_of(row));
  return offer;
}

void Written::add(Written other) {
  files.merge(other.files);
  tensors.insert(tensors.end(), std::make_move_iterator(other.tensors.begin()),
                 std::make_move_iterator(other.tensors.end()));
  if (error.empty()) error = std::move(other.error);
  chunks.insert(chunks.end(), std::make_move_iterator(other.chunks.begin()),
                std::make_move_iterator(other.chunks.end()));
  if (chunk_error.empty()) chunk_error = std::move(other.chunk_error);
  states.insert(states.end(), std::make_move_iterator(other.states.begin()),
                std::make_move_iterator(other.states.end()));
  objects.merge(other.objects);
}

std::string Written::to_text() const {
  Manifest manifest;
  manifest.files = files;
  manifest.tensors = tensors;
  json document = {{"error", error},          {"content", manifest.to_json()},
                   {"chunks", json::array()}, {"chunk_error", chunk_error},
                   {"states", json::array()}, {"objects", json::object()}};
  for (const WrittenChunk& chunk : chunks) document["chunks"].push_back(json_of(chunk));
  for (const WrittenChunk& chunk : states) document["states"].push_back(json_of(chunk));
  for (const auto& [key, place] : objects)
    document["objects"][key] = {place.file, place.offset, place.length};
  return document.dump();
}

Written Written::from_text(const std::string& text) {
  const json document = json::parse(text);
  Manifest manifest = Manifest::from_json(document.at("content").get<std::string>(),
                                          "a message of another process");
  Written written{std::move(manifest.files), std::move(manifest.tensors),
                  document.at("error").get<std::string>()};
  for (const json& row : document.at("chunks")) written.chunks.push_back(chunk_of(row));
  document.at("chunk_error").get_to(written.chunk_error);
  for (const json& row : document.at("states")) written.states.push_back(chunk_of(row));
  for (const auto& [key, row] : document.at("objects").items())
    written.objects[key] = {row.at(0), row.at(1), row.at(2)};
  return written;
}

}  // namespace trellis::checkpoint::native
