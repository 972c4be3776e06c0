"""Generation: ODE solvers, guidance, and image files."""

from flowtempo.generation.generate import Generated, generate, interval
from flowtempo.generation.guidance import check_guidance
from flowtempo.generation.images import save_grid, save_npz
from flowtempo.generation.ode import Solver, SolverName

__all__ = [
    "Generated",
    "Solver",
    "SolverName",
    "check_guidance",
    "generate",
    "interval",
    "save_grid",
    "save_npz",
]
