"""Chooses among all pools and models that satisfy a request, by one score.

Each pool returns its best place with a score: connections, warnings, then the loss for the usual requests, in
1/16 of a GPU. A model counts as more expensive

- by one whole GPU if pending requests wait for it and could not take the other models;
- by half a GPU each time its price doubles, up to one GPU.

When a user first starts in a pool, their new home stays on that node. Each node then counts as more expensive
by the average needs of its homes, up to two GPUs if they need the whole node.

If scores are equal, the least valuable model wins, by price and then by device memory; then the first pool by
slug.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from portal.scheduling.engine.placement.types import ModelPreference
from portal.scheduling.placement_request import PlacementRequest, Variant
from portal.scheduling.pool_nodes import PoolNodes
from provisioning.types import Placement, ResourceRequest

GPU_LEVELS = 16
"""Score levels per gained GPU, near a gain of 0."""
DOUBLE_PRICE_LEVELS = GPU_LEVELS // 2
MAX_VALUE_RANK = 63
Prices = Mapping[str, int]
"""Price of a GPU-hour by resource, in 1/1000 of a cent. Only for models with a price in a flavor."""


@dataclass(frozen=True, slots=True)
class PoolPlacement:
    """The pool and the placement of a request, and the resources that it takes there."""

    pool: PoolNodes
    placement: Placement
    request: ResourceRequest
    variant: Variant


def best_placement(
    placement_request: PlacementRequest,
    variants: Sequence[Variant],
    preference: ModelPreference | None = None,
) -> PoolPlacement | None:
    """Return the best place for any of the variants in all pools, or None if nothing fits now."""
    pools = placement_request.pools
    if len(pools) == 1 and len(variants) == 1:
        pool, variant = pools[0], variants[0]
        request = pool.with_requirements(variant.request, placement_request.software)
        placement = pool.find(request, new_home=placement_request.new_home)
        return None if placement is None else PoolPlacement(pool, placement, request, variant)
    best, rank = None, None
    for pool in pools:
        for alternative in _requests(pool, placement_request, variants):
            request = pool.with_requirements(alternative, placement_request.software)
            candidate = pool.best(request, preference, new_home=placement_request.new_home)
            if candidate is not None and (rank is None or candidate.rank > rank):
                variant = variants[0] if len(variants) == 1 else _variant_of(variants, candidate.model)
                best, rank = PoolPlacement(pool, candidate.placement, request, variant), candidate.rank
    return best


def _requests(
    pool: PoolNodes, placement_request: PlacementRequest, variants: Sequence[Variant]
) -> list[ResourceRequest]:
    """Return one request for all variants if each node has only one model, else one per variant."""
    accelerators = placement_request.request.accelerators
    if len(variants) == 1:
        return [variants[0].request]
    if placement_request.request.nodes != 1 or (accelerators.count > 1 and pool.cluster.mixes_models):
        return [variant.request for variant in variants]
    if len(variants) == len(placement_request.variants):
        return [placement_request.request]
    models = tuple(sorted(model for variant in variants for model in variant.models))
    return [replace(placement_request.request, accelerators=replace(accelerators, models=models))]


def _variant_of(variants: Sequence[Variant], model: str) -> Variant:
    return next(variant for variant in variants if model in variant.models)


def model_preference(
    variants: Sequence[Variant], prices: Prices, waiting: Mapping[str, int]
) -> ModelPreference | None:
    """Return differences between the variants' models besides their places, or None.

    `waiting` is the number of pending requests by resource that accept no other model.
    """
    if len(variants) == 1:
        return None
    known = [prices[variant.resource] for variant in variants if variant.resource in prices]
    cheapest = min(known, default=0)
    penalties = [
        (GPU_LEVELS if waiting.get(variant.resource, 0) > 0 else 0)
        + _price_penalty(prices.get(variant.resource, cheapest), cheapest)
        for variant in variants
    ]
    values = [(prices.get(variant.resource, cheapest), variant.memory_mib) for variant in variants]
    order = sorted(set(values))
    least = min(penalties)
    if len(order) == 1 and max(penalties) == least:
        return None
    pairs = zip(variants, penalties, values, strict=True)
    by_model = [
        (model, penalty - least, value) for variant, penalty, value in pairs for model in variant.models
    ]
    return ModelPreference(
        {model: penalty for model, penalty, _ in by_model if penalty},
        {model: min(order.index(value), MAX_VALUE_RANK) for model, _, value in by_model},
    )


def _price_penalty(price: int, cheapest: int) -> int:
    if not cheapest or price <= cheapest:
        return 0
    return min(GPU_LEVELS, round(DOUBLE_PRICE_LEVELS * math.log2(price / cheapest)))


@dataclass(frozen=True, slots=True)
class SparedModel:
    """A model that had room but was spared, because `waiting` requests need it or its price is higher."""

    resource: str
    waiting: int
    more_expensive: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which model was chosen, and which others had room."""

    resource: str
    spared: tuple[SparedModel, ...]


def explain(
    placement_request: PlacementRequest,
    variants: Sequence[Variant],
    chosen: Variant,
    prices: Prices,
    waiting: Mapping[str, int],
) -> Explanation:
    """Return the reason for the choice. Takes a decision per model, so only previews use it."""
    price = prices.get(chosen.resource)
    spared = tuple(
        SparedModel(
            variant.resource,
            max(0, waiting.get(variant.resource, 0)),
            price is not None and prices.get(variant.resource, 0) > price,
        )
        for variant in variants
        if variant is not chosen and best_placement(placement_request, (variant,)) is not None
    )
    return Explanation(chosen.resource, spared)
