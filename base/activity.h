#pragma once

#include <cstdint>
#include <string>

namespace trellis {

/// Reports what the program is doing to a user who waits. While one exists, a thread writes a line
/// on stderr whenever nothing was written there for 1.5 s: the newest activity, its count and its
/// seconds, "... judging layouts: 1200 of 13620 (4 s)". An empty text writes nothing: another
/// library or program is at work and writes its own lines. May be made and used on any thread; each
/// shared library has its own.
class Activity {
 public:
  explicit Activity(std::string what);
  ~Activity();
  Activity(const Activity&) = delete;
  Activity& operator=(const Activity&) = delete;

  void now(std::string what);  ///< the next part of the same work: count and seconds begin again
  void count(std::int64_t done, std::int64_t of = 0);  ///< `of` 0: how many there are is unknown

 private:
  struct Entry;
  class Board;
  static Board& board();
  friend void note_written();
  Entry* entry_;
};

/// Something was written on stderr: the next line of an activity can wait. log() says so itself.
void note_written();

}  // namespace trellis
