"""The duels of a device over HTTP, for programs in any language, and a page for people.

The page at ``/`` shows duels and takes answers; ``/docs`` describes every endpoint. By default the
service listens on this machine only, and requests need its token.

The reply to an answer is sent once the answer is stored durably; ``POST /answers`` stores many
answers in one write. Images of duels are ``data:`` or ``https:`` URLs. The host of an ``https:``
URL learns when the image is shown, and to which address.
"""
