#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace trellis::sim {

/// An array of which few elements are ever used: a large cluster has millions of links and cores.
/// Elements come in pages, made when the first one of a page is written.
template <typename T>
class SparseArray {
 public:
  [[nodiscard]] T& operator[](std::size_t index) {
    const std::size_t page = index / kPage;
    if (page >= pages_.size()) pages_.resize(page + 1);
    if (pages_[page] == nullptr) pages_[page] = std::make_unique<T[]>(kPage);
    return pages_[page][index % kPage];
  }
  /// nullptr: no one has written there; others of its page may have been.
  [[nodiscard]] const T* find(std::size_t index) const {
    const std::size_t page = index / kPage;
    return page < pages_.size() && pages_[page] != nullptr ? &pages_[page][index % kPage] : nullptr;
  }
  /// visit(index, element) for all elements of all pages, ascending.
  template <typename Visit>
  void for_each(Visit visit) const {
    for (std::size_t page = 0; page < pages_.size(); ++page) {
      for (std::size_t i = 0; pages_[page] != nullptr && i < kPage; ++i)
        visit(page * kPage + i, pages_[page][i]);
    }
  }
  void clear() { pages_.clear(); }

 private:
  static constexpr std::size_t kPage = 256;
  std::vector<std::unique_ptr<T[]>> pages_;
};

}  // namespace trellis::sim
