#include "gpu/variants.h"

#include <algorithm>
#include <stdexcept>

namespace hologram::gpu {

std::vector<std::pair<std::string, Variant>> variants_of(const Steps& steps, size_t step,
                                                         uint8_t rank) {
  const Step& its = steps.list[step];
  const auto has = [&](NodeKind kind) {
    return std::ranges::any_of(its.nodes, [&](const Node& node) { return node.kind == kind; });
  };
  const auto joins = [](Variant of_parts, Variant of_all) {
    of_parts.joins = of_all.joins = true;
    of_parts.parts = true;
    return std::vector<std::pair<std::string, Variant>>{{"joins", of_parts}, {"joins", of_all}};
  };
  std::vector<std::pair<std::string, Variant>> all;
  switch (its.skeleton) {
    case Skeleton::elements: {
      const bool strided = std::ranges::any_of(
          steps.operands, [](const Operand& operand) { return operand.layout == Layout::strided; });
      Variant variant;
      if (strided) {
        variant.rank = rank;
        return {{"strided", variant}};
      }
      const std::string kind = has(NodeKind::random)     ? "draws"
                               : has(NodeKind::position) ? "positions"
                               : has(NodeKind::pick)     ? "picks"
                               : steps.structured        ? "broadcasts"
                                                         : "elements";
      all = {{kind, variant}};
      variant.vectors = true;
      if (vector_of(steps, step) > 1) all.push_back({kind + "_vectors", variant});
      variant.many = true;
      all.push_back({kind + "_of_tensors", variant});
      return all;
    }
    case Skeleton::rows: {
      const bool folds = std::ranges::any_of(its.nodes, is_row_fold);
      const std::string picks = has(NodeKind::pick) ? "_picks" : "";
      for (const bool vectors : {false, true}) {
        for (const auto& [team, several] :
             {std::pair{Team::warp, false}, {Team::warp, true}, {Team::block, true}}) {
          if (team == Team::block && !folds) continue;
          Variant variant;
          variant.team = team, variant.several = several, variant.vectors = vectors;
          all.push_back({std::string(team == Team::warp ? "rows_by_warp" : "rows_by_block") +
                             (several ? "_long" : "") + (vectors ? "_vectors" : "") + picks,
                         variant});
        }
      }
      return all;
    }
    case Skeleton::classes: {
      all = joins({}, {.team = Team::block});
      Variant variant;
      variant.parts = true;
      all.push_back({"classes", variant});
      variant.vectors = true;
      all.push_back({"classes_vectors", variant});
      for (const bool vectors : {false, true}) {
        variant.team = Team::block, variant.vectors = vectors;
        all.push_back({vectors ? "classes_whole_vectors" : "classes_whole", variant});
      }
      return all;
    }
    case Skeleton::fold_down: {
      all = joins({}, {});
      for (const bool vectors : {false, true}) {
        const std::string suffix = vectors ? "_vectors" : "";
        Variant variant;
        variant.vectors = vectors;
        all.push_back({"fold_down" + suffix, variant});
        variant.parts = true;
        all.push_back({"fold_down_parts" + suffix, variant});
      }
      return all;
    }
    case Skeleton::scan: {
      Variant variant;
      variant.team = Team::thread;
      all = {{its.axis == kMiddle ? "scan_down" : "scan_rows", variant}};
      if (!is_tiled(its)) return all;
      variant.team = Team::warp;
      all.push_back({"scan_many_rows", variant});
      variant.team = Team::block;
      all.push_back({"scan_few_rows", variant});
      return all;
    }
  }
  throw std::logic_error("a skeleton without variants");
}

}  // namespace hologram::gpu
