#include "linear/dense_tile.h"
#include "linear/panel_product.h"
#include "linear/panel_tile.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// Calls body<Dot>() for the format.
template <class Body>
void with_dot(Format format, Body&& body) {
    with_format(format, [&]<Format F>() {
        if constexpr (!quantises_activations(F)) body.template operator()<FloatDot<F>>();
    });
}

}  // namespace

void dense_panel_tile(const PanelTile& a) {
    with_dot(a.format, [&]<class Dot>() {
        dense_tiles<Dot>({a.panel, a.next_panel, a.blocks, {a.x.values, a.x.tokens}, a.first, a.tokens, a.outputs});
    });
}

void dense_panel_streams(const PanelStreams& a) {
    if constexpr (kStreams > 1)
        with_dot(a.format, [&]<class Dot>() {
            dense_streams<Dot>(a.panels, a.next, a.blocks, {a.x.values, a.x.tokens}, a.first, a.outputs);
        });
}

}  // namespace decodestep::DECODESTEP_BUILD
