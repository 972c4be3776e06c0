"""Where on [0, 1] the times of a training step are drawn, and the weights that come with them."""

from flowtempo.timesteps.adaptive import ADAPTATIONS, DELAY, Adaptation, AdaptiveProposal, adaptation
from flowtempo.timesteps.curriculum import CURRICULA, Curriculum, CurriculumProposal, curriculum
from flowtempo.timesteps.proposal import Proposal, Proposing, Spacing, Times, WeightCheck

__all__ = [
    "ADAPTATIONS",
    "CURRICULA",
    "DELAY",
    "Adaptation",
    "AdaptiveProposal",
    "Curriculum",
    "CurriculumProposal",
    "Proposal",
    "Proposing",
    "Spacing",
    "Times",
    "WeightCheck",
    "adaptation",
    "curriculum",
]
