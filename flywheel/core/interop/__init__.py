"""Our environments in the hands of others: the protocols they speak, and packages in which they take an environment.

`play`, `responses`, `bundle`, `gym` and `http` run on both sides: an export carries copies of them and of all of
`flywheel.core` that they need (`vendor`). `writing` makes the exports. No Django here.
"""
