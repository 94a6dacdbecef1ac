// A large C++ source: many instantiations of the standard library's templates. -DCOUNT=N sets how
// many.
#include <algorithm>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>

template <int N> struct Tag {
    int value = N;
    bool operator<(const Tag &other) const { return value < other.value; }
    bool operator==(const Tag &other) const { return value == other.value; }
};

template <int N> int work(const std::string &text) {
    std::map<Tag<N>, std::vector<std::tuple<int, std::string, Tag<N>>>> map;
    std::unordered_map<std::string, std::variant<int, std::string, Tag<N>>> table;
    std::set<std::pair<std::string, Tag<N>>> set;
    for (size_t i = 0; i < text.size(); i++) {
        map[Tag<N>{int(i) % 7}].emplace_back(int(i), text.substr(i), Tag<N>{});
        table[text.substr(i)] = Tag<N>{int(i)};
        set.emplace(text, Tag<N>{int(i)});
    }
    int sum = 0;
    for (auto &[tag, list] : map) {
        std::sort(list.begin(), list.end(),
                  [](auto &a, auto &b) { return std::get<1>(a) < std::get<1>(b); });
        sum += tag.value + int(list.size());
    }
    for (auto &[key, entry] : table)
        sum += std::visit([](auto &&v) { return int(sizeof v); }, entry) + int(key.size());
    std::function<int(int)> next = [&](int i) { return i + sum + int(set.size()); };
    return next(N);
}

template <int N> int all(const std::string &text) {
    if constexpr (N == 0)
        return 0;
    else
        return work<N>(text) + all<N - 1>(text);
}

int main(int argc, char **argv) {
    std::string text = argc > 1 ? argv[1] : "text";
    return all<COUNT>(std::regex_replace(text, std::regex("a+b"), "c")) & 1;
}
