"""Secure sum: the coordinator learns the sum of the sites' vectors and nothing else (SENSITIVITY.md says how far).

Double masking after Bonawitz et al. 2017 on a graph after Bell et al. 2020, with seeds of their own for every question
(Ma et al. 2023), as state machines over bytes: ``SiteSum`` and ``CoordinatorSum`` agree on a ``SumSpec``.
"""
