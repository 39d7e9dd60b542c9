"""Estimators of scikit-learn: networks that train through one compiled step, in pipelines and searches. Needs
scikit-learn: the extra ``sklearn``."""

from glowtrain.errors import check_extra

check_extra("glowtrain.sklearn", "scikit-learn", "sklearn", "sklearn")

from glowtrain.sklearn.estimators import Classifier, Regressor  # noqa: E402  what is missing is said first

__all__ = ["Classifier", "Regressor"]
